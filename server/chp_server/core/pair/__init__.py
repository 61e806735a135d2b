"""Binary Star and the link of the pair: the table, the arbiter, following, the pending list, BEAT. Pure."""
