"""The decisions of a server. All code in this folder is pure: it uses no socket, clock, thread, file or chance.

The folders have one order, and none imports a later one:

    state        the data
    updates      the way from KVSETs to records
    pair         Binary Star
    peer         the link to the other server
    questions    the answers on port P

`core` calls them. `updates.turn` lists the effects of a turn, and `performing` says in which order a shell does them.
"""
