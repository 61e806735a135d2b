"""The settings: what they are (`config`), how each is read, the command line (`flags`), which source wins (`sources`).

They read the environment and one file, once, at the start.
"""
