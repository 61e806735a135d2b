"""The journal over a SQL database: writing, recovery and clean-up, its tables, and the two databases.

`sql_journal` decides when and in which order. `database` is the interface of a database, which `sqlite` and `postgres`
implement.
"""
