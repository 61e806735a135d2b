"""Questions to the servers from programs without a copy: reads, the change feed, and requests of an operator."""
