"""A replica: a server that follows a pair and serves its readers (docs/operations/replicas.md)."""
