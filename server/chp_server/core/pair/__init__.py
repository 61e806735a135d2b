"""The rules by which two servers are a pair.

    pair_state     what a server knows of its pair
    binary_star    the table that says which server is active
    arbitration    the arbiter's part: which server may be active, and when an acknowledgement is safe
    liveness       when a silent peer counts as gone
    beat           the sign of life of a busy server (BEAT)
    follow         how a passive catches up with the active, and stays with it
    pending        the sets that a passive keeps until it sees them in a record

Pure: nothing here does I/O or reads a clock. The link that uses these rules is in `peer`.
"""
