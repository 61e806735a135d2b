"""The copy of a client: its channels, the keys in order, and the changes that a watch missed. All of it is pure."""
