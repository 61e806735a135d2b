"""The server's five sockets, and those who connect to them.

Who lives here: the sockets (`sockets`), files of `ipc` (`files`), the connections to P and P+1 (`replies`,
`subscribers`, `connections`), and the thread that says to the peer that we live (`beats`).
They may touch zmq and the kernel; of the core only what they carry.
"""
