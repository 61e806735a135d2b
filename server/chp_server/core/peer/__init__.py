"""The link to the other server of the pair.

    peerlink     takes the peer's messages, and sends ours; the others are its parts
    handshake    STATE, and the decision whether the other server can be the peer
    suffix       what becomes of updates that only one of the servers has
    replay       the way of these updates to the active
    scrub        the comparison of both servers' contents
    backfill     the request for messages that a journal lacks
    health       the rule by which an unhealthy active steps down

All modules here are pure.
"""
