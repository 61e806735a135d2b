"""Port P: who asks for what (`requests`), snapshots and resumes (`syncs`), slices for several readers (`images`),
the feed (`feeds`) out of the log and of pages of the journal (`pages`), and what an operator sees (`status`).

They read what is held, and change nothing but sessions and leases that begin. Pure.
"""
