"""Who may connect: the locks of the sockets (`doors`), and the keys of a server, its peer and its users (`keyring`).

They may touch zmq and files.
"""
