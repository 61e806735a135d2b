"""What a client decides. Everything under this folder is pure: no socket, clock, thread, file or chance.

`core` routes what comes to its parts, which are told and answer, and joins their answers: whom to follow
(`leadership`), what the copy is worth (`freshness`), CHP/1 (`chp1`), own sets (`ownsets`): `sending` has the session's
batches, `copy` what is held of the servers' map, and both know what is not acknowledged (`outbox`).
"""
