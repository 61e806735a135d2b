"""CHP, the Clustered Hashmap Protocol (RFC 12) and its extension CHP/2: the messages and their meaning.

Everything in this package is pure: no socket, no clock, no thread. The server and the client are built on it.

    limits      every bound, with its reason          errors      the kinds of bad input
    keys        keys, subtrees, channel topics        numbers     epoch and sequence in one 8-byte number
    properties  the text properties of CHP/1          messages    CHP/1 frame by frame
    batch       CHP/2 bodies: columns of updates      hashmap     the replicated map itself
"""

from .errors import BadFrame, BadInput, BadKey, BadSubtree, BadTtl, BadValue, ChpError
from .limits import DEFAULT, Limits

__all__ = ["DEFAULT", "BadFrame", "BadInput", "BadKey", "BadSubtree", "BadTtl", "BadValue", "ChpError", "Limits"]
