"""The decisions of a server. Everything under this folder is pure: no socket, clock, thread, file or chance.

The folders have one order, and none imports a later one: `state` (the data), `updates` (from KVSETs to records),
`pair` (Binary Star), `peer` (the link to the other server) and `questions` (port P). `core` calls them.
`updates.turn` lists the effects of a turn, and `performing` says in which order a shell does them.
"""
