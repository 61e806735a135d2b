"""The way from KVSETs to records: judge (`intake`), apply (`committed`), answer (`acks`); `commit` does all three.

`turn` describes what a turn hands to the shell. The modules here know the state (`state`) and the turn, but neither the
peer nor the questions of clients. They do no I/O.
"""
