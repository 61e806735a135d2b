"""Every change in order, without a copy (`feed`); the versions of one key (`history`); whether a copy's contents are
the server's (`comparing`).

from chp_client.feed import Feed
"""

from .feed import Feed, FeedRecord
from .history import Version

__all__ = ["Feed", "FeedRecord", "Version"]
