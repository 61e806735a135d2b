"""The journal over a SQL database: its turn, reading it back, cleaning up; the tables; and the two databases there are.

`sql_journal` says when and in which order, `database` what it asks of a database, `sqlite` and `postgres` answer.
"""
