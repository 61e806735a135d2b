"""Images by number: which numbers may be asked for, and the images that were made of them (SPEC.md, section 17.6).

    ICANHAZ? subtree {id, image: 0, prefix}                              keeps the present number; REPLY tells it
    ICANHAZ? subtree {id, image: n, proof, prefix, part, parts, ...}     asks for a part of the image at number n

A plan of a read asks for the number only. The first question for a part makes the image: the map of now, with what
changed since that number undone (undo_log.py). So a plan that is never run costs only a number. Both servers keep the
same numbers, because a record tells them (`columns.IMAGES`). After a failover the successor makes the same image again.

The active decides how long a number is kept. A number ends `image_idle_s_max` after its last use. It is done once as
many reads have asked for all their parts as plans asked for the number. Then it ends `image_done_s_max` after its last
use, so that a reader that failed can ask again. If the table is full, a number that no client reads makes room, or one
of the user that has most numbers. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass, field
from weakref import WeakSet

from chp.fair import crowding
from chp.limits import Limits
from chp.numbers import describe

from ..state.image import Image, PartedImage

# A refusal names at most this many of the largest images.
NAMED = 3


@dataclass(slots=True)
class ReadImage:
    """An image that is read, and the parts that the read under way has asked for."""

    image: PartedImage
    asked: set[int] = field(default_factory=set)


@dataclass(slots=True)
class ImageNumber:
    """A kept number: who asked for it first, the time of its last use, and its images by prefix and count of parts."""

    touched: float
    user: str = ""
    # The number of plans that asked for this number, and of reads that have asked for all parts.
    plans: int = 0
    reads: int = 0
    images: dict[tuple[str, int], ReadImage] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """True if each plan was read to its end."""
        return 0 < self.plans <= self.reads

    def until(self, limits: Limits) -> float:
        """Return the time until which the number is kept if it is not used again."""
        return self.touched + (limits.image_done_s_max if self.done else limits.image_idle_s_max)


class ImageNumbers:
    """The kept numbers as the active uses them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._numbers: dict[int, ImageNumber] = {}

    @property
    def images(self) -> int:
        """The number of images."""
        return sum(len(number.images) for number in self._numbers.values())

    def plan(self, number: int, now: float, user: str) -> None:
        """Note that a plan asked for a number."""
        kept = self._numbers.setdefault(number, ImageNumber(now, user))
        kept.touched = now
        kept.plans += 1

    def making_room(self, kept: Collection[int], now: float, user: str) -> list[int] | None:
        """Return the numbers to forget so that a user can have one more; None if none may be forgotten."""
        if len(kept) < self._limits.image_numbers_max:
            return []
        self.forget(kept, now)
        self.adopt(kept, now)
        users = {number: each.user for number, each in self._numbers.items()}
        crowd = crowding(Counter(users.values()), self._limits.image_numbers_max, user)
        idle_since = now - self._limits.image_unread_s_min
        theirs = {number: each for number, each in self._numbers.items() if crowd in (None, each.user)}
        left = [number for number, each in theirs.items() if each.done or each.touched <= idle_since]
        if not left and crowd not in (None, user):
            left = list(theirs)
        return [min(left, key=lambda number: self._numbers[number].touched)] if left else None

    def adopt(self, kept: Iterable[int], now: float) -> None:
        """Note the kept numbers that this server has not noted yet, each with its full time from now on.

        A successor has such numbers when it becomes active.
        """
        for number in kept:
            self._numbers.setdefault(number, ImageNumber(now))

    def image(self, number: int, prefix: str, parts: int) -> PartedImage | None:
        """Return the image of a number; None if it was not made."""
        kept = self._numbers.get(number)
        found = kept.images.get((prefix, parts)) if kept is not None else None
        return None if found is None else found.image

    def begin(self, image: PartedImage, now: float, user: str) -> None:
        """Note an image that the server has begun to make."""
        kept = self._numbers.setdefault(image.number, ImageNumber(now, user))
        kept.images[image.prefix, len(image.parts)] = ReadImage(image)

    def part(self, image: PartedImage, part: int, now: float) -> Image:
        """Return a part of an image, and note that it was asked for."""
        kept = self._numbers[image.number]
        read = kept.images[image.prefix, len(image.parts)]
        kept.touched = now
        read.asked.add(part)
        if len(read.asked) == len(image.parts):
            kept.reads += 1
            read.asked.clear()
        return image.parts[part]

    def over(self, kept: Iterable[int], now: float) -> list[int]:
        """Return the kept numbers whose time is over."""
        self.adopt(kept, now)
        return [number for number, each in self._numbers.items() if each.until(self._limits) <= now]

    def forget(self, kept: Container[int], now: float) -> None:
        """Forget the numbers that are not kept any more, and the images of those whose time is over."""
        for number, each in list(self._numbers.items()):
            if number not in kept:
                del self._numbers[number]
            elif each.until(self._limits) <= now:
                each.images.clear()

    def clear(self) -> None:
        """Forget everything: this server no longer serves."""
        self._numbers.clear()


class Alive:
    """All images in memory, whether kept or only read, so that their size together is bounded."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._images: WeakSet[Image] = WeakSet()

    def add(self, image: Image) -> None:
        """Add an image; it leaves by itself when nothing refers to it any more."""
        self._images.add(image)

    def full(self, keys: int) -> bool:
        """Return True if no other image may be made, given the number of keys in the map."""
        images, limits = list(self._images), self._limits
        if sum(image.nbytes for image in images) < limits.images_bytes_max:
            return False
        return sum(image.size for image in images) >= limits.images_maps_max * keys

    def why(self) -> str:
        """Return the text of a refusal for lack of memory. It names the largest images."""
        sizes: Counter[str] = Counter()
        for image in list(self._images):
            sizes[f"{image.prefix or '/'} at {describe(image.number)}"] += image.nbytes
        held = ", ".join(f"{name} ({size >> 20} MiB)" for name, size in sizes.most_common(NAMED))
        more = f", and {len(sizes) - NAMED} more" if len(sizes) > NAMED else ""
        return (
            f"the images that are read hold {sum(sizes.values()) >> 20} MiB, and may hold "
            f"{self._limits.images_bytes_max >> 20} MiB: {held}{more}; ask again when a read is done"
        )
