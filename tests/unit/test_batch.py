"""The batch codec: what is written is read back, and whatever is read is a segment or BadInput."""

from collections.abc import Iterator

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chp.batch import KIND_NAMES, Segment, decode_segment, join, narrow, packb, segment_of, split, unpackb
from chp.errors import BadFrame, BadInput
from chp.keys import check_column, check_decoded, check_key
from chp.limits import DEFAULT

things = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
numbers = st.integers(-2, 4)
columns = st.lists(st.lists(numbers, max_size=4) | numbers | st.binary(max_size=17), max_size=5) | things
names = st.sampled_from(
    ["d", "t", "c", "n", "l", "lease", "unlease", "r", "u", "p", "stage", "commit", "abort", "done", "m"]
)
shaped = st.tuples(
    st.lists(st.text(max_size=3), max_size=4),
    st.lists(st.binary(max_size=3), max_size=4),
    st.none() | st.dictionaries(names, columns, max_size=4),
)


@given(st.binary(max_size=200) | things.map(packb) | shaped.map(packb))
def test_any_bytes_are_read_or_are_bad_input(body: bytes) -> None:
    for read in (decode_segment, split, lambda b: unpackb(b, "it")):
        try:
            read(body)
        except BadInput as error:
            assert str(error)


@given(shaped)
def test_a_decoded_segment_can_be_encoded_narrowed_and_applied(shape: tuple[list[str], list[bytes], object]) -> None:
    from chp.hashmap import Hashmap

    try:
        segment = segment_of(msgpack.unpackb(packb(shape)))
    except BadFrame:
        return
    assert decode_segment(segment.encode()) == segment
    segment.describe()
    for prefix in ("", "a", "\x00"):
        part = narrow(segment, prefix)
        assert part is None or all(key.startswith(prefix) for key in part.keys)
    hashmap = Hashmap()
    hashmap.apply(segment, 1, 0.0)
    hashmap.check()


@given(
    st.lists(st.sampled_from(["/", "/a", "/a/", "/a/b", "/a0", "/b/", "z", "é/"]), max_size=8),
    st.sampled_from(["", "/a/", "/a", "é", "/b/", "q"]),
)
def test_narrow_keeps_exactly_the_keys_with_the_prefix(keys: list[str], prefix: str) -> None:
    part = narrow(Segment(keys, [b"%d" % i for i in range(len(keys))]), prefix)
    wanted = [(key, b"%d" % i) for i, key in enumerate(keys) if key.startswith(prefix)]
    assert ([] if part is None else list(zip(part.keys, part.values, strict=True))) == wanted


@pytest.mark.parametrize("n", [0, 1, 14, 15, 16, 65_534, 65_535, 65_536])
def test_split_reads_a_body_with_any_number_of_items(n: int) -> None:
    parts = split(join([5, 1, 2, 3, 4, None, False], [b"\xc0"] * n))
    assert len(parts) == n + 1


def test_a_segment_has_at_most_the_maximum_of_items() -> None:
    n = DEFAULT.batch_items_max
    assert len(decode_segment(Segment(["k"] * n, [b""] * n).encode()).keys) == n
    with pytest.raises(BadFrame, match="split it"):
        decode_segment(Segment(["k"] * (n + 1), [b""] * (n + 1)).encode())


@pytest.mark.parametrize(
    "header", [[], [None], [-1], [len(KIND_NAMES)], ["1"], [True], 1, None, [1, 2, 3], [0], [7, 1, 2]]
)
def test_a_malformed_header_is_refused(header: object) -> None:
    with pytest.raises(BadFrame):
        split(packb([header]))


def test_a_segment_that_names_a_delete_twice_is_refused() -> None:
    with pytest.raises(BadFrame, match="'d'"):
        segment_of([["/a", "/b"], [b"", b""], {"d": [0, 0]}])


@given(
    st.lists(
        st.text(min_size=0, max_size=4) | st.sampled_from(["HUGZ", "KTHXBAI", "k" * 1025, "é" * 513, "é" * 512]),
        max_size=5,
    )
)
def test_check_column_agrees_with_check_key(keys: list[str]) -> None:
    def good(key: str) -> bool:
        try:
            return check_key(key) == key
        except BadInput:
            return False

    try:
        check_column(keys, {})
        assert all(map(good, keys))
    except BadInput:
        assert not all(map(good, keys))


@given(
    st.lists(
        st.text(min_size=0, max_size=4) | st.sampled_from(["HUGZ", "KTHXBAI", "k" * 1025, "é" * 513, "é" * 512]),
        max_size=5,
    )
)
def test_check_decoded_agrees_with_check_key(keys: list[str]) -> None:
    def taken(keys: list[str]) -> bool:
        try:
            check_decoded(decode_segment(Segment(keys, [b""] * len(keys)).encode()).keys)
        except BadInput:
            return False
        return True

    def fits(key: str) -> bool:
        try:
            return check_key(key) == key
        except BadInput:
            return False

    assert taken(keys) == all(map(fits, keys))


@pytest.mark.parametrize("n", [1, 100, 10_000])
def test_a_segment_with_a_too_long_key_is_refused_with_the_limit(n: int) -> None:
    keys = [*map(str, range(n - 1)), "k" * 1025]
    with pytest.raises(BadFrame, match="text of more than 1024 bytes"):
        decode_segment(Segment(keys, [b""] * n).encode())
    assert decode_segment(Segment([key[:1024] for key in keys], [b""] * n).encode()).keys[-1] == "k" * 1024


@pytest.mark.parametrize(
    ("segment", "line"),
    [
        (Segment(["/a", "/b"], [b"1", b""], {"d": [1]}), "/a=1 /b deleted"),
        (Segment([f"/{i}" for i in range(6)], [b"x"] * 6), "/0=x /1=x /2=x /3=x (+2 more)"),
        (Segment(["/a"], [b"1"], {"t": 2500}), "/a=1 ttl=2500"),
        (Segment(["/a"], [b"1"], {"t": [[0], [2500]], "c": [[0], [1 << 48 | 7]]}), "/a=1 ttl=[2500] if=1.7"),
        (
            Segment(["/a"], [b"1"], {"lease": [b"mine" + bytes(12), 500], "l": b"mine" + bytes(12)}),
            "/a=1 lease=mine:500ms leased=mine",
        ),
        (Segment([], [], {"unlease": b"\xff" * 16}), "unlease=" + "ff" * 16),
        (Segment(["/a"], [b"1"], {"stage": [b"t" * 16, "0"]}), "/a=1"),
    ],
)
def test_describe_shows_a_segment_in_one_line(segment: Segment, line: str) -> None:
    assert segment.describe() == line


@pytest.mark.parametrize("sizes", [[0], [1 << 16], [(1 << 16) + 1], [1 << 20, 0, 3, 255, 256, 70_000], [70_000] * 65])
@pytest.mark.parametrize("extras", [None, {"t": 5}])
def test_large_values_are_encoded_as_msgpack_would(sizes: list[int], extras: dict[str, int] | None) -> None:
    segment = Segment([f"/{i}" for i in range(len(sizes))], [b"x" * n for n in sizes], extras)
    assert segment.encode() == packb((segment.keys, segment.values, extras))


def test_a_large_value_is_not_packed_by_msgpack(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []

    def noted(thing: object) -> bytes:
        packed.append(len(packb(thing)))
        return packb(thing)

    monkeypatch.setattr("chp.batch.packb", noted)
    Segment(["/a", "/b"], [b"x" * (1 << 20), b"y"]).encode()
    assert max(packed) < 100


def test_the_bounds_of_a_segment_are_looked_for_once() -> None:
    looks = []

    class Keys(list[str]):
        def __iter__(self) -> Iterator[str]:
            looks.append(1)
            return super().__iter__()

    segment = Segment(Keys(["/a/2", "/a/1"]), [b"", b""])
    assert segment.bounds == ("/a/1", "/a/2") and len(looks) == 2
    assert [narrow(segment, prefix) for prefix in ("/a/", "/b/", "")] == [segment, None, segment]
    assert len(looks) == 2, "the lowest and the highest key are known"
    assert segment == Segment(["/a/2", "/a/1"], [b"", b""])
