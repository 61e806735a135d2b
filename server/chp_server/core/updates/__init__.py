"""From KVSETs to records: judge (`intake`), apply (`committed`), answer (`acks`); `commit` is the three in their order.

Of the server they know what is held (`state`) and the turn; not the peer, not who asks. Pure.
"""
