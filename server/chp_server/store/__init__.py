"""The journal: what all stores have, which store an URL means (`opening`), how far it had been (`journal_mark`).

A store knows rows and no state: it imports nothing of the core but the shape of a row (`core/state/recordlog.py`).
The stores over a SQL database are in `sql/`; `memory_store` keeps nothing.
"""
