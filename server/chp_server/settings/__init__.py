"""The settings: a table (`settings`), how each is read, the command line (`flags`), which source wins (`config`).

They read the environment and one file, once, at the start.
"""
