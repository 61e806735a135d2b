"""Arrow columns packed without a Python object a row: byte for byte what the lists would be."""

from typing import Any

import pyarrow as pa
import pytest

from chp.batch import Segment
from chp.errors import BadKey
from chp_client.spark.values.pack import PackedRows, check_keys

LENGTHS = {"one length": [5] * 40, "none": [0, 0], "no rows": [], "many": [0, 1, 31, 32, 255, 256, 65_535, 65_536, 3]}


def rows(keys: list[str], values: list[bytes], extras: dict[str, Any] | None = None) -> PackedRows:
    return PackedRows(pa.array(keys, pa.large_string()), pa.array(values, pa.large_binary()), extras)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=list(LENGTHS))
def test_packed_rows_encode_as_a_segment_of_lists(lengths: list[int]) -> None:
    keys, values = (
        [chr(97 + i % 26) * n for i, n in enumerate(lengths)],
        [bytes([i]) * n for i, n in enumerate(lengths)],
    )
    assert rows(keys, values).encode() == Segment(keys, values).encode()
    assert rows(keys, values, {"d": [0]}).encode(t=5) == Segment(keys, values, {"d": [0], "t": 5}).encode()


def test_a_slice_and_text_beyond_ascii() -> None:
    keys, values = ["/ä", "/b", "/é€", "/d", "/long" * 20], [b"1", b"22", b"333", b"4", b"5"]
    whole = rows(keys, values)
    part = PackedRows(whole.key_column.slice(1, 3), whole.value_column.slice(1, 3), None)
    assert part.encode() == Segment(keys[1:4], values[1:4]).encode()


@pytest.mark.parametrize("n", [0, 15, 16, 70_000])
def test_arrays_of_every_header_size_are_packed(n: int) -> None:
    keys, values = [f"/{i:06}" for i in range(n)], [b"%d" % i for i in range(n)]
    assert rows(keys, values).encode() == Segment(keys, values).encode()


@pytest.mark.parametrize(
    ("keys", "again"),
    [(["/a1", "/a2", "/a1"], 1), (["/a", "/bb", "/a", "/a"], 2), ([f"/{i:015}" for i in range(20_000)], 0), ([], 0)],
)
def test_duplicates_are_counted(keys: list[str], again: int) -> None:
    assert rows(keys, [b""] * len(keys)).duplicates == again
    doubled = pa.array(keys * 2, pa.large_string()).slice(len(keys) // 2, len(keys))
    assert PackedRows(doubled, doubled.cast(pa.large_binary()), None).duplicates == len(keys) - len(
        set(doubled.to_pylist())
    )


@pytest.mark.parametrize("key", ["", "\x02a", "HUGZ", "/" + "x" * 1024, "/" + "ä" * 512])
def test_invalid_keys_are_refused(key: str) -> None:
    with pytest.raises(BadKey):
        check_keys(pa.array(["/fine", key, "/fine"], pa.large_string()))


def test_valid_keys_are_accepted() -> None:
    for keys in ([], ["/a", "b", "é", "/" + "x" * 1023], ["/only/plain"]):
        check_keys(pa.array(keys, pa.large_string()))
