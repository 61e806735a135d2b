"""Every change in order, without a copy (`feed`); whether a copy's contents are the server's (`comparing`).

from chp_client.feed import Feed
"""

from .feed import Feed, FeedRecord

__all__ = ["Feed", "FeedRecord"]
