"""Numbers: epoch and sequence in 8 bytes, odd epochs for the primary."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chp.errors import BadFrame, BadInput
from chp.numbers import (
    EPOCH_MAX,
    SEQUENCE_MASK,
    UNKNOWN,
    Revision,
    describe,
    epoch_of,
    next_epoch,
    number,
    pack,
    sequence_of,
    unpack,
)  # fmt: skip


@given(st.integers(0, EPOCH_MAX), st.integers(0, SEQUENCE_MASK))
def test_a_number_is_read_back(epoch: int, sequence: int) -> None:
    n = number(epoch, sequence)
    assert (epoch_of(n), sequence_of(n), unpack(pack(n))) == (epoch, sequence, n)
    assert n < 1 << 63 and describe(n) == f"{epoch}.{sequence}"


@given(st.integers(0, EPOCH_MAX - 2), st.booleans())
def test_the_next_epoch_is_higher_and_odd_or_even_as_asked(seen: int, odd: bool) -> None:
    epoch = next_epoch(seen, odd=odd)
    assert seen < epoch <= seen + 2 and epoch % 2 == odd


@pytest.mark.parametrize("frame", [b"", b"1234567", b"123456789"])
def test_a_frame_of_another_size_is_refused(frame: bytes) -> None:
    with pytest.raises(BadFrame, match="8"):
        unpack(frame)


class TestRevision:
    def test_a_revision_prints_as_epoch_and_sequence_and_is_otherwise_an_int(self) -> None:
        revision = Revision(number(1, 7))
        assert [str(revision), repr(revision), f"{revision}", f"{revision:>5}", "%s" % revision] == [  # noqa: UP031
            "1.7", "1.7", "1.7", "  1.7", "1.7",
        ]  # fmt: skip
        assert f"{revision:d}" == str(number(1, 7)) and f"{revision:x}" == f"{number(1, 7):x}"
        assert revision == number(1, 7) and hash(revision) == hash(number(1, 7)) and revision < Revision("2.0")
        assert {int(revision): 1, revision: 2} == {number(1, 7): 2} and revision + 1 == number(1, 8)

    def test_a_copied_or_pickled_revision_is_equal(self) -> None:
        revision = Revision(number(3, 12))
        for other in (copy.copy(revision), copy.deepcopy(revision), pickle.loads(pickle.dumps(revision))):
            assert other == revision and type(other) is Revision and str(other) == "3.12"

    @given(st.integers(0, EPOCH_MAX), st.integers(0, SEQUENCE_MASK))
    def test_the_text_of_a_revision_is_read_back(self, epoch: int, sequence: int) -> None:
        revision = Revision(number(epoch, sequence))
        assert Revision(str(revision)) == revision == Revision(f"{revision:d}")

    @pytest.mark.parametrize(
        "text", ["", "x", "1.", ".1", "-1", "1.2.3", "1,2", "40000.1", "1.999999999999999", "9" * 25]
    )
    def test_a_bad_revision_text_is_refused_with_the_remedy(self, text: str) -> None:
        with pytest.raises(BadInput, match=r"such as 1\.42|at most"):
            Revision(text)

    def test_the_unknown_revision_is_0_1(self) -> None:
        assert UNKNOWN == 1 and str(UNKNOWN) == "0.1"
