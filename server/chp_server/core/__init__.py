"""What a server decides. Everything under this folder is pure: no socket, clock, thread, file or chance.

`core` decides who is active and calls its parts, which share a `standing`; `turn` lists the effects, and `performing`
says in which order they are done. The parts: `updates` (KVSETs to records), `state` (what is held), `pair` (the other
server), `questions` (port P), `channels`, `listeners` and `subscribing` (port P+1), `room`, `resting`, `ending`.
"""
