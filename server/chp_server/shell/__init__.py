"""The part that runs the core: the loop (`reactor`), backups, the arbiter, metrics, and a look at memory and disk.

Modules here may touch clocks, threads and files. They do not decide what the server says or keeps.
"""
