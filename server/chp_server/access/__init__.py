"""Who may connect: the locks of the sockets (`doors`), and the keys of a server, its peer and its users (`keyring`);
who may hear what (`admitting`), and what is written of it all (`audit`).

They may touch zmq and files.
"""
