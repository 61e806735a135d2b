"""The settings: their list (`config`), how each is read (`readers`), the command line (`flags`), and which source wins
(`sources`).

The server reads the environment and one file, once, at the start.
"""
