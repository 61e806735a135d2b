"""The way from KVSETs to records: judge (`intake`), apply (`committed`), answer (`acks`);
`commit` does the three in order.

`turn` describes what a turn hands to the shell. The modules here know the state (`state`) and the turn. They do not
know the peer, nor the questions of clients. They do no I/O.
"""
