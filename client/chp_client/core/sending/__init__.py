"""Own sets: a session's batches and their numbers, what is not acknowledged, leases to refresh. Pure."""
