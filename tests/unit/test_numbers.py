"""Numbers: epoch and sequence in 8 bytes, odd epochs for the primary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chp.errors import BadFrame
from chp.numbers import EPOCH_MAX, SEQUENCE_MASK, describe, epoch_of, next_epoch, number, pack, sequence_of, unpack


@given(st.integers(0, EPOCH_MAX), st.integers(0, SEQUENCE_MASK))
def test_a_number_is_read_back(epoch: int, sequence: int) -> None:
    n = number(epoch, sequence)
    assert (epoch_of(n), sequence_of(n), unpack(pack(n))) == (epoch, sequence, n)
    assert n < 1 << 63 and describe(n) == f"{epoch}.{sequence}"


@given(st.integers(0, EPOCH_MAX - 2), st.booleans())
def test_the_next_epoch_is_higher_and_of_its_side(seen: int, odd: bool) -> None:
    epoch = next_epoch(seen, odd=odd)
    assert seen < epoch <= seen + 2 and epoch % 2 == odd


@pytest.mark.parametrize("frame", [b"", b"1234567", b"123456789"])
def test_a_frame_of_another_size_is_refused(frame: bytes) -> None:
    with pytest.raises(BadFrame, match="8"):
        unpack(frame)
