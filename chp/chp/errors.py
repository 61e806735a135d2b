"""What can be wrong with what somebody said, by kind.

Every error names the thing, and what to do about it, in its one line of text. `ChpError` is the root, so that a
program can catch all of ours in one clause; `BadInput` is the part of it that is the caller's fault and is a
`ValueError` too, as the standard library would raise it.
"""


class ChpError(Exception):
    """Root of every error this project raises on purpose."""


class BadInput(ChpError, ValueError):
    """The caller, or the peer, said something that can't be taken."""


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
