"""covers: chp/unpacking.py: no body builds more than a legal one could, and each legal one is read."""

import tracemalloc
from itertools import pairwise

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chp.batch import BATCH, Segment, decode_segment, join, segment_of, split
from chp.errors import BadFrame
from chp.limits import DEFAULT, MIB
from chp.unpacking import BODY, DEPTH_MAX, LIGHT, QUESTION, SEGMENT, SHORT, TEXT_BYTES_MAX, TooMuch, unpack

N = DEFAULT.batch_items_max
# The heaviest legal body takes so much, as do arrays that are begun and never filled.
BUILT_BYTES_MAX = 96 * MIB
SMALLEST = {
    "nil": b"\xc0", "number": b"\xcd\x10\x00", "text": b"\xa2ab", "bytes": b"\xc4\x02ab", "array": b"\x90",
    "map": b"\x80", "pair": b"\x92\x01\x02", "float": b"\xcb" + b"\x11" * 8, "extension": b"\xc7\x00\x01",
    "timestamp": b"\xd6\xff\x00\x00\x00\x01",
}  # fmt: skip


def array(n: int) -> bytes:
    """Return the head of an array."""
    return b"\xdd" + n.to_bytes(4)


def built_bytes(body: bytes, weight_max: int = BODY) -> int:
    """Return the peak memory of unpacking the body, whether that worked or not."""
    tracemalloc.start()
    try:
        unpack(body, weight_max)
    except (ValueError, BadFrame):
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak - len(body)


def flat(element: bytes, length: int, size: int) -> bytes:
    """Return an array of arrays of `length` elements, of about `size` bytes."""
    n = max(1, size // (len(element) * length + 5))
    return array(n) + (array(length) + element * length) * n


def nested(element: bytes, length: int, size: int) -> bytes:
    """Return nested arrays of `length` elements, none of which is complete."""
    one = array(length) + element * (length - 1)
    return one * min(1000, max(1, size // len(one)))


@pytest.mark.parametrize("shape", [flat, nested])
@pytest.mark.parametrize("element", SMALLEST.values(), ids=SMALLEST)
@pytest.mark.parametrize("length", [SHORT, N])
def test_no_frame_of_small_things_builds_more_than_a_legal_body(shape, element: bytes, length: int) -> None:  # type: ignore[no-untyped-def]
    assert built_bytes(shape(element, length, 8 * MIB)) < BUILT_BYTES_MAX


def test_split_and_decode_segment_refuse_a_frame_of_empty_lists() -> None:
    with pytest.raises(BadFrame, match=r"the body .*exceeds max_array_len"):
        split(array(2 * MIB) + b"\x90" * 2 * MIB)
    with pytest.raises(BadFrame, match=r"the batch is too much.*send less at a time"):
        decode_segment(flat(b"\x90", 60_000, MIB))


@st.composite
def structures(draw: st.DrawFn) -> bytes:
    """Draw arrays beside and in each other, of elements that are small to send."""
    body, element = b"", st.sampled_from(sorted(SMALLEST.values()))
    for _ in range(draw(st.integers(1, 40))):
        length = draw(st.sampled_from([1, 3, 200, SHORT, SHORT + 1, N, N + 1]))
        filled = draw(st.integers(0, length))
        body += (array(length) + draw(element) * filled) * draw(st.integers(1, 30))
        if len(body) > 2 * MIB:
            break
    return body


@settings(deadline=None, max_examples=60)
@given(structures(), st.sampled_from([QUESTION, SEGMENT, BODY]))
def test_a_body_of_any_structure_takes_bounded_memory(body: bytes, weight_max: int) -> None:
    assert built_bytes(body, weight_max) < BUILT_BYTES_MAX


@settings(deadline=None, max_examples=200)
@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(max_size=40) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=60,
))  # fmt: skip
def test_a_body_within_the_bounds_is_read_as_msgpack_reads_it(thing: object) -> None:
    # The way of reading depends on the size.
    for padding in (0, LIGHT, MIB + 1):
        body = msgpack.packb([thing, bytes(padding), list(range(SHORT + 1)) if padding else None])
        try:
            assert unpack(body) == msgpack.unpackb(body)
        except ValueError:
            assert depth(thing) >= DEPTH_MAX


def depth(thing: object) -> int:
    """Return the depth of nested containers, with the outer one."""
    inner = thing if isinstance(thing, list) else thing.values() if isinstance(thing, dict) else None
    return 1 if inner is None else 1 + max(map(depth, inner), default=0)


# -- legal bodies


def every_column(n: int) -> Segment:
    """Return the heaviest segment that a client may send: all sparse columns name all items."""
    places = list(range(n))
    extras = {"d": places, "t": [places, [500] * n], "c": [places, [1 << 48] * n], "n": [places, [1 << 48] * n]}
    return Segment([f"/{i}" for i in places], [b""] * n, extras)


def test_the_heaviest_batch_is_read() -> None:
    segment = every_column(N)
    assert decode_segment(segment.encode()) == segment


def test_the_heaviest_record_is_read() -> None:
    numbers = [BATCH, 1, 2, 3, 4, [[bytes([i % 256]) * 16, 1] for i in range(2000)], False]
    small = Segment(["/k"], [b"v"], {"t": [[0], [500]]})
    items = [small.encode()] * DEFAULT.record_segments_max + [every_column(N // 2).encode(), every_column(N).encode()]
    _, *read = split(join(numbers, items))
    assert len(read) == len(items) and segment_of(read[-1]) == every_column(N)


def test_a_client_that_bounds_arrays_maps_and_text_reads_each_legal_body() -> None:
    body = msgpack.packb([[BATCH, 1, 2, 3, 4, [], False], msgpack.unpackb(every_column(N).encode())])
    bounds = {"max_array_len": N + 1, "max_map_len": N, "max_str_len": TEXT_BYTES_MAX, "max_ext_len": 0}
    assert msgpack.unpackb(body, **bounds) == unpack(body)
    with pytest.raises(ValueError, match="max_array_len"):
        msgpack.unpackb(flat(SMALLEST["nil"], N + 2, MIB), **bounds)


def test_the_deepest_legal_body_is_read() -> None:
    commit = {"commit": [b"t" * 16, "job", 1, [[f"{i}.0", 1] for i in range(SHORT + 1)], None]}
    piece = [[[b"s" * 16, 1]], True, [[[], [], commit]]]
    replay = [b"s" * 16, 1, 2, [piece]]
    assert unpack(msgpack.packb(replay)) == replay


def test_text_with_one_wide_character_is_bounded() -> None:
    text = "\U0001f600" + "a" * TEXT_BYTES_MAX
    with pytest.raises(ValueError, match="max_str_len"):
        unpack(msgpack.packb([text]))
    assert built_bytes(msgpack.packb([text * 100])) < MIB


@pytest.mark.parametrize(
    "extension", [SMALLEST["extension"], SMALLEST["timestamp"], msgpack.packb(msgpack.ExtType(5, b""))]
)
def test_extension_types_are_refused(extension: bytes) -> None:
    for filling in (b"", b"x" * LIGHT):
        with pytest.raises(ValueError, match=r"extension type|max_ext_len"):
            unpack(b"\x92" + extension + msgpack.packb(filling))


def test_the_weight_of_a_body_counts_entries_and_containers() -> None:
    lists = [[i] * 100 for i in range(100)]
    body = msgpack.packb([lists, bytes(LIGHT)])
    weights = [weight for weight in range(0, 20_000, 500) if _fits(body, weight)]
    assert weights and all(after - before == 500 for before, after in pairwise(weights)), "from some weight on"
    assert 100 * 116 < weights[0] <= 100 * 116 + 100 + 2 + 3 * 16 + 500


def _fits(body: bytes, weight: int) -> bool:
    try:
        unpack(body, weight)
    except TooMuch:
        return False
    return True
