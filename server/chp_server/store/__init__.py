"""Where a journal is kept: which store an URL means (`opening`), what every stored thing carries (`journal_rows`).

A store knows rows and no state: of the core it imports what a journal is (`core/state/journal.py`) and the shape of
what it keeps; the core imports no store.
The stores over a SQL database are in `sql/`; `memory_store` keeps nothing.
"""
