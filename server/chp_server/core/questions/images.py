"""Images that several readers share: one subtree at one number, sent in slices (SPEC.md, section 17).

    ICANHAZ? subtree {id, image, prefix, parts}     makes the image, and keeps it under its 16-byte name
    ICANHAZ? subtree {id, image, part}              asks for slice `part` of it, as SYNC chunks

A plain snapshot has one reader. A job with many readers names an image first. Then all slices are of the same number,
whatever is written meanwhile.

An image is a list of references, not a copy of the values. It keeps old values in memory, so its time is bounded. An
image is kept for `image_idle_s_max` after its last use. Once every slice was asked for, it is kept for only
`image_done_s_max`, in which a reader that failed may ask again. Named images are not replicated: after a failover a job
begins anew. Readers of this version ask for images by number, which a failover survives (image_numbers.py).
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
from chp.numbers import describe

from ..state.image import Image


@dataclass(slots=True)
class Shared:
    """An image that is kept, the number of its slices, and the time of its last use."""

    image: Image
    parts: int
    touched: float
    # The user that made it.
    user: str = ""
    # The slices that were asked for.
    asked: set[int] = field(default_factory=set)

    def until(self, limits: Limits) -> float:
        """Return the time until which it is kept if it is not used again."""
        done = len(self.asked) == self.parts
        return self.touched + (limits.image_done_s_max if done else limits.image_idle_s_max)


# A refusal names so many of the largest images.
NAMED = 3


class Alive:
    """All images in memory, whether kept or only read, so that their size together is bounded."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._images: WeakSet[Image] = WeakSet()

    def add(self, image: Image) -> None:
        """Add an image; it leaves by itself when nothing refers to it any more."""
        self._images.add(image)

    def full(self, keys: int) -> bool:
        """Return True if no other image may be made, beside a map of so many keys."""
        images, limits = list(self._images), self._limits
        if sum(image.nbytes for image in images) < limits.images_bytes_max:
            return False
        return sum(image.size for image in images) >= limits.images_maps_max * keys

    def why(self) -> str:
        """Return the text of a refusal when it is full: what the largest images are."""
        sizes: Counter[str] = Counter()
        for image in list(self._images):
            sizes[f"{image.prefix or '/'} at {describe(image.number)}"] += image.nbytes
        held = ", ".join(f"{name} ({size >> 20} MiB)" for name, size in sizes.most_common(NAMED))
        more = f", and {len(sizes) - NAMED} more" if len(sizes) > NAMED else ""
        return (
            f"the images that are read hold {sum(sizes.values()) >> 20} MiB, and may hold "
            f"{self._limits.images_bytes_max >> 20} MiB: {held}{more}; ask again when a read is done"
        )


class Images:
    """The images that are kept, by name."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._shared: dict[bytes, Shared] = {}

    def __len__(self) -> int:
        return len(self._shared)

    def get(self, name: bytes) -> Image | None:
        """Return the image of a name; None if it is not kept."""
        shared = self._shared.get(name)
        return None if shared is None else shared.image

    def make_room(self, now: float, user: str = "") -> bool:
        """Return True if one more image of a user can be kept; drop another one for it if need be.

        If the table is full, an image goes whose slices were all asked for, or else one that was not used for a
        while. If one user has at least a quarter of the table, the image is one of the user that has most. If there is
        no such image, that user loses the one used longest ago to another user. The user itself gets no room then.
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
        """Return a kept image of this number and prefix, or None; so jobs share one while nothing changes."""
        for shared in self._shared.values():
            if shared.image.number == number and shared.image.prefix == prefix:
                return shared.image
        return None

    def keep(self, name: bytes, image: Image, parts: int, now: float, user: str = "") -> None:
        """Keep an image under a name; a second call changes the number of slices if none was asked for yet."""
        shared = self._shared.setdefault(name, Shared(image, parts, now, user))
        if not shared.asked:
            shared.parts = parts

    def part(self, name: bytes, part: int, now: float) -> Image | None:
        """Return a slice of an image; None if the image is not kept or not complete, or has no such slice."""
        shared = self._shared.get(name)
        if shared is None or not shared.image.ready or not 0 <= part < shared.parts:
            return None
        shared.touched = now
        shared.asked.add(part)
        return shared.image.part(part, shared.parts)

    def expire(self, now: float) -> None:
        """Drop the images whose time is over."""
        if self._shared:
            for name in [name for name, shared in self._shared.items() if shared.until(self._limits) <= now]:
                del self._shared[name]

    def clear(self) -> None:
        """Drop all images: this server no longer serves their state."""
        self._shared.clear()


def packed(segment: Segment) -> bytes:
    """Return a chunk for a reader of columns: all keys joined, all values joined, and their lengths."""
    text = "".join(segment.keys)
    keys = text.encode()
    plain = len(keys) == len(text)
    sizes = map(len, segment.keys) if plain else (len(key.encode()) for key in segment.keys)
    lengths = {columns.KEY_BYTES: _octets(sizes), columns.VALUE_BYTES: _octets(map(len, segment.values))}
    return packb((keys, b"".join(segment.values), {**(segment.extras or {}), **lengths}))


def _octets(sizes: Iterable[int]) -> bytes:
    """Return each size in 32 bits, with the low byte first."""
    column = array("I", sizes)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()
