"""The set of done queue offsets, beside a plain set."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq_broker.core.delays import BLOCK_OFFSETS, OffsetSet
from osenv import SeededRng

# Offsets near the ends of blocks, where all that is special happens.
PLACES = st.builds(lambda block, at: max(0, block * BLOCK_OFFSETS + at), st.integers(0, 3), st.integers(-4, 12))
LOOKED_AT = [block * BLOCK_OFFSETS + at for block in range(5) for at in range(-10, 45) if block or at >= 0]
STEPS = st.lists(st.tuples(st.sampled_from(["add", "add", "add", "below", "stretch"]), PLACES), max_size=40)


class Plain:
    """The same by definition: everything below `floor`, and some offsets from there on."""

    def __init__(self) -> None:
        self.floor = 0
        self.members: set[int] = set()

    def __contains__(self, offset: int) -> bool:
        return offset < self.floor or offset in self.members

    def add(self, offset: int) -> bool:
        is_new = offset not in self
        if is_new:
            self.members.add(offset)
        return is_new

    def add_below(self, offset: int) -> bool:
        is_new = offset > self.next
        self.floor = max(self.floor, offset)
        return is_new

    @property
    def next(self) -> int:
        offset = self.floor
        while offset in self.members:
            offset += 1
        return offset

    @property
    def ahead(self) -> set[int]:
        return {offset for offset in self.members if offset > self.next}


def members(offsets: OffsetSet, end: int) -> set[int]:
    return {offset for offset in range(end) if offset in offsets}


def as_read(offsets: OffsetSet) -> OffsetSet:
    """What comes back from the file."""
    return OffsetSet.from_json(offsets.next, json.loads(json.dumps(offsets.to_json())))


def block_bytes(offsets: OffsetSet) -> int:
    """What its blocks take; full ones share one."""
    return sum(len(block) for block in offsets._blocks.values() if isinstance(block, bytearray))


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_it_is_the_set_of_what_was_added(steps: list[tuple[str, int]]) -> None:
    offsets, plain = OffsetSet(), Plain()
    for step, offset in steps:
        if step == "below":
            assert offsets.add_below(offset) == plain.add_below(offset)
        else:
            for one in range(offset, offset + (20 if step == "stretch" else 1)):
                assert offsets.add(one) == plain.add(one)
    for found in (offsets, as_read(offsets)):
        assert (found.next, found.count_ahead) == (plain.next, len(plain.ahead))
        assert found.end == max(plain.ahead, default=plain.next - 1) + 1
        assert all((offset in found) == (offset in plain) for offset in LOOKED_AT)


def test_a_gap_that_closes_takes_everything_behind_it_along() -> None:
    offsets = OffsetSet()
    for offset in range(1, 3 * BLOCK_OFFSETS + 5):
        offsets.add(offset)
    assert (offsets.next, offsets.count_ahead) == (0, 3 * BLOCK_OFFSETS + 4)
    assert offsets.add(0)
    assert (offsets.next, offsets.count_ahead, offsets.end) == (3 * BLOCK_OFFSETS + 5, 0, 3 * BLOCK_OFFSETS + 5)
    assert members(as_read(offsets), 3 * BLOCK_OFFSETS + 7) == {*range(3 * BLOCK_OFFSETS + 5)}


def test_a_block_that_is_full_takes_no_room_and_stays_full_in_the_file() -> None:
    offsets = OffsetSet()
    for offset in range(BLOCK_OFFSETS, 2 * BLOCK_OFFSETS):
        offsets.add(offset)
    assert block_bytes(offsets) == 0
    assert offsets.to_json() == {"1": "full"}
    read = as_read(offsets)
    assert (read.count_ahead, read.end, block_bytes(read)) == (BLOCK_OFFSETS, 2 * BLOCK_OFFSETS, 0)
    assert not read.add(BLOCK_OFFSETS + 7)
    assert read.add_below(BLOCK_OFFSETS + 1)
    assert (read.next, read.count_ahead) == (2 * BLOCK_OFFSETS, 0)


@pytest.mark.parametrize("count", [512, 513])
def test_few_offsets_of_a_block_are_listed_and_many_are_bits(count: int) -> None:
    offsets = OffsetSet()
    for offset in range(count):
        offsets.add(2 * offset + 1)
    (block,) = offsets.to_json().values()
    assert isinstance(block, list) == (count == 512)
    assert members(as_read(offsets), 2 * count + 1) == {2 * offset + 1 for offset in range(count)}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_million_offsets_in_any_order_take_less_than_a_megabyte(seed: int) -> None:
    order = list(range(1, 1_000_000))
    SeededRng(seed).shuffle(order)
    offsets, most = OffsetSet(), 0
    for number, offset in enumerate(order):
        offsets.add(offset)
        if number % 10_000 == 0:
            most = max(most, block_bytes(offsets))
    assert offsets.count_ahead == 999_999
    assert 100_000 < most < 1_000_000
    assert len(json.dumps(offsets.to_json())) < 1_000_000
    offsets.add(0)
    assert offsets.next == 1_000_000
    assert block_bytes(offsets) <= BLOCK_OFFSETS // 8


@pytest.mark.parametrize(
    "ahead",
    [
        {"x": [1]},
        {"0": 7},
        {"0": None},
        {"0": [-1]},
        {"0": [BLOCK_OFFSETS]},
        {"0": [True]},
        {"0": ["1"]},
        {"0": "AAAA"},
        {"0": "not base64!"},
        {"0": {"1": 2}},
    ],
)
def test_a_document_of_another_form_is_rejected(ahead: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        OffsetSet.from_json(0, ahead)


@pytest.mark.parametrize(("next_offset", "ahead"), [(-1, {}), (0, {"-1": [5]})])
def test_offsets_below_zero_are_rejected(next_offset: int, ahead: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        OffsetSet.from_json(next_offset, ahead)


def test_what_a_file_says_of_offsets_below_the_next_one_is_not_counted_twice() -> None:
    read = OffsetSet.from_json(5, {"0": [1, 3, 5, 6, 9]})
    assert (read.next, read.count_ahead) == (7, 1)
    assert members(read, 12) == {*range(7), 9}
