"""The two servers: Binary Star's table, hearing the peer, meeting it, catching up, replaying, comparing contents.

They share the core's `standing` and change what is held only by records. Pure.
"""
