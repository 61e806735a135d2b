"""The decisions of a client. Everything in this folder is pure: it has no socket, clock, thread, file or chance.

`core` routes each message to its part and joins the answers of the parts. `leadership` chooses the server to follow.
`freshness` rates the copy. `chp1` speaks CHP/1. `own_sets` and `session` number the batches of this client. `outbox`
keeps the batches that are not acknowledged. `copy` holds the part of the map that the client subscribed to.
"""
