"""The other server: hearing it, meeting it, catching up, replaying, comparing contents. Pure."""
