"""The decisions of a client. Everything under this folder is pure: no socket, clock, thread, file or chance.

`core` routes each message to its part, and joins the answers of the parts: `leadership` follows a server, `freshness`
rates the copy, `chp1` speaks CHP/1, `own_sets` and `session` number the own batches, `outbox` keeps what is not
acknowledged, and `copy` holds the servers' map.
"""
