"""The errors of this project, by kind.

The text of an error is one line, which names the thing and the remedy. `ChpError` is the root, so that a program can
catch all of ours in one clause. `BadInput` is an error of the caller or the peer; it is also a `ValueError`, as the
standard library raises one in such cases.
"""


class ChpError(Exception):
    """The root of every error that this project raises on purpose."""


class BadInput(ChpError, ValueError):
    """The caller, or the peer, gave something that can't be used."""


class BadKey(BadInput):
    """A key that is empty, too long, not text, or reserved."""


class BadValue(BadInput):
    """A value that is not bytes, or larger than `Limits.value_bytes_max`."""


class BadTtl(BadInput):
    """A time to live that is not a finite number of seconds within the limits."""


class BadSubtree(BadInput):
    """A subtree that is not empty and does not begin and end with a slash."""


class BadFrame(BadInput):
    """A message whose frames are not what the specification says."""
