"""Own sets: a session's batches and their numbers, leases to refresh. Pure."""
