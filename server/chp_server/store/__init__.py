"""The stores of journals: `store_url` opens the store of a URL, and `journal_rows` has the columns and checksums.

A store knows rows and no state. It imports the interface of a journal (`core/state/journal.py`) and the forms of rows
from the core; the core imports no store. The stores over a SQL database are in `sql/`; `memory_store` keeps a journal
in memory only.
"""
