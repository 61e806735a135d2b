"""The state of a server: what records change, and what is derived from it.

This folder holds the map, sessions, leases, topics and groups; the latest records and the history of epochs; images of
the state at one number. `journal.py` describes what a journal does; the stores implement it.

The modules here import only each other and `chp`, apart from the settings of a journal. They do no I/O.
"""
