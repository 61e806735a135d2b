"""The access of clients: `zap` answers libzmq's questions about keys, and `keyring` has the keys of a server, its peer
and its users. `subscription_authorizer` decides on each subscription, and `audit` writes what happened.

These modules may use zmq and files.
"""
