"""Columns of a data frame to values and back: which types there are, and how rows are packed. It knows no server."""
