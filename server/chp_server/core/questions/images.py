"""Images that several readers share: one subtree at one number, handed out in slices (SPEC.md, section 17).

    ICANHAZ? subtree {id, image, prefix, parts}     the image is made, and kept under its 16-byte name
    ICANHAZ? subtree {id, image, part}              slice `part` of it, as SYNC chunks

One snapshot is read by one reader. A job with many readers names an image first; then each slice is of the same number,
whatever is written meanwhile. An image is a list of references, not a copy of the values; it keeps old values alive,
so it is kept for a bounded time: `image_idle_s_max` since its last use, `image_done_s_max` once every slice was asked
for (a reader that failed may ask again). The images are not replicated: after a failover a reader begins anew.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from weakref import WeakSet

from chp import columns
from chp.batch import Segment, packb
from chp.fair import crowding
from chp.limits import Limits

from ..state.image import Image


@dataclass(slots=True)
class Shared:
    """An image, into how many slices it goes, and when it was used."""

    image: Image
    parts: int
    touched: float
    user: str = ""  # who made it
    asked: set[int] = field(default_factory=set)

    def until(self, limits: Limits) -> float:
        """How long it is kept if nobody comes."""
        done = len(self.asked) == self.parts
        return self.touched + (limits.image_done_s_max if done else limits.image_idle_s_max)


class Alive:
    """The images that somebody reads or keeps, so that all of them together are bounded."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._images: WeakSet[Image] = WeakSet()

    def add(self, image: Image) -> None:
        """One more."""
        self._images.add(image)

    def full(self, keys: int) -> bool:
        """Whether they are as much as may be, beside a map of so many keys."""
        most = max(self._limits.images_items_max, self._limits.images_maps_max * keys)
        return sum(image.size for image in list(self._images)) >= most


class Images:
    """All that are kept, by name."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._shared: dict[bytes, Shared] = {}

    def __len__(self) -> int:
        return len(self._shared)

    def get(self, name: bytes) -> Image | None:
        """The image of that name, if it is kept."""
        shared = self._shared.get(name)
        return None if shared is None else shared.image

    def make_room(self, now: float, user: str = "") -> bool:
        """Whether one more of a user's can be kept; of the user who has most another may go for it.

        That is one that was read to the end, or that nobody seems to read. If there is none, a user who has most of
        them loses the one used longest ago to another user, and gets no room for more.
        """
        if len(self._shared) < self._limits.images_max:
            return True
        users = {name: shared.user for name, shared in self._shared.items()}
        crowd = crowding(Counter(users.values()), self._limits.images_max, user)
        idle_since = now - self._limits.image_unread_s_min
        mine = {name: shared for name, shared in self._shared.items() if crowd in (None, shared.user)}
        done = [name for name, shared in mine.items() if len(shared.asked) == shared.parts]
        left = done or [name for name, shared in mine.items() if shared.touched <= idle_since]
        if not left and crowd not in (None, user):
            left = list(mine)
        if left:
            del self._shared[min(left, key=lambda name: self._shared[name].touched)]
        return bool(left)

    def same(self, number: int, prefix: str) -> Image | None:
        """An image that is kept and shows just this: readers that plan often, while nothing changes, share one."""
        for shared in self._shared.values():
            if shared.image.number == number and shared.image.prefix == prefix:
                return shared.image
        return None

    def keep(self, name: bytes, image: Image, parts: int, now: float, user: str = "") -> None:
        """Keep an image under a name; again, to have it in another number of slices while none was asked for."""
        shared = self._shared.setdefault(name, Shared(image, parts, now, user))
        if not shared.asked:
            shared.parts = parts

    def part(self, name: bytes, part: int, now: float) -> Image | None:
        """A slice of an image; None if the image is not here or not whole, or has no such slice."""
        shared = self._shared.get(name)
        if shared is None or not shared.image.ready or not 0 <= part < shared.parts:
            return None
        shared.touched = now
        shared.asked.add(part)
        return shared.image.part(part, shared.parts)

    def expire(self, now: float) -> None:
        """Let go of what nobody came for."""
        if self._shared:
            for name in [name for name, shared in self._shared.items() if shared.until(self._limits) <= now]:
                del self._shared[name]

    def clear(self) -> None:
        """Let go of all: the state they show is not ours any more."""
        self._shared.clear()


def packed(segment: Segment) -> bytes:
    """A chunk for a reader that makes columns of it: all keys in one piece, all values in one, and their lengths."""
    text = "".join(segment.keys)
    keys = text.encode()
    plain = len(keys) == len(text)
    sizes = map(len, segment.keys) if plain else (len(key.encode()) for key in segment.keys)
    lengths = {columns.KEY_BYTES: _octets(sizes), columns.VALUE_BYTES: _octets(map(len, segment.values))}
    return packb((keys, b"".join(segment.values), {**(segment.extras or {}), **lengths}))


def _octets(sizes: Iterable[int]) -> bytes:
    """32 bits each, the low ones first."""
    column = array("I", sizes)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()
