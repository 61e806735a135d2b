"""Asking a server on port P without a Clone: the servers in turn (`port`), and whether they let us in (`admission`)."""
