"""What a group has finished of one queue, held to a plain set of offsets; and the table of all of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq_broker.core.consumer_offsets import COUNTER_MAX, VERSION_MAX, ConsumerOffsets, Progress
from mq_broker.core.limits import RANGES_PER_QUEUE_MAX

END = 24
offsets = st.sets(st.integers(0, END - 1))


def of(finished: set[int], version: int = 0) -> Progress:
    """The normal form of a set of offsets."""
    offset = next(at for at in range(END + 1) if at not in finished)
    ranges = []
    for at in range(offset, END):
        if at in finished and at - 1 not in finished:
            ranges.append((at, next(end for end in range(at, END + 1) if end not in finished)))
    return Progress(offset, tuple(ranges), version)


def finished(progress: Progress) -> set[int]:
    return {at for at in range(END) if at in progress}


class TestProgress:
    @given(offsets)
    def test_the_normal_form_says_the_same_as_the_set(self, one: set[int]) -> None:
        progress = of(one)
        progress.check()
        assert finished(progress) == one
        assert progress.end == max(one, default=-1) + 1
        assert progress.finished_beyond == sum(at > progress.offset for at in one)

    @pytest.mark.mechanism("C20")
    @given(offsets, offsets)
    def test_merging_is_the_union_and_keeps_the_normal_form(self, one: set[int], two: set[int]) -> None:
        assert of(one, 3).merged(of(two, 3)) == of(one | two, 3)

    @given(offsets, offsets)
    def test_what_comes_twice_or_late_changes_nothing(self, one: set[int], two: set[int]) -> None:
        both = of(one).merged(of(two))
        assert both.merged(of(one)) == both.merged(of(two)) == both

    @given(offsets, st.integers(0, END))
    def test_cutting_leaves_what_lies_below_the_end(self, one: set[int], end: int) -> None:
        assert of(one).cut(end) == of({at for at in one if at < end})

    def test_a_gap_that_closes_takes_the_ranges_behind_it_along(self) -> None:
        stuck = Progress(2_101, ((2_102, 2_201), (2_300, 2_301)))
        assert stuck.merged(Progress(2_102)) == Progress(2_201, ((2_300, 2_301),))

    def test_setting_the_offset_forgets_what_is_beyond_and_begins_a_new_version(self) -> None:
        assert Progress(10, ((12, 20),), 4).set_to(15) == Progress(15, (), 5)
        with pytest.raises(ValueError, match="version 4 has nothing to do with version 5"):
            Progress(15, (), 5).merged(Progress(20, (), 4))

    @pytest.mark.parametrize(
        ("progress", "sentence"),
        [
            (Progress(-1), "offset -1; allowed are 0 and more"),
            (Progress(0, (), -1), "version -1"),
            (Progress(0, (), VERSION_MAX + 1), "version"),
            (Progress(5, ((5, 6),)), "not beyond offset 5"),
            (Progress(5, ((4, 6),)), "not beyond offset 5"),
            (Progress(5, ((7, 7),)), "is empty"),
            (Progress(5, ((9, 8),)), "is empty"),
            (Progress(5, ((7, 9), (9, 10))), "not apart"),
            (Progress(5, ((9, 10), (7, 8))), "not apart"),
            (Progress(0, tuple((at, at + 1) for at in range(2, 2 * RANGES_PER_QUEUE_MAX + 4, 2))), "at most 4096"),
        ],
    )
    def test_what_is_not_in_the_normal_form_is_rejected(self, progress: Progress, sentence: str) -> None:
        with pytest.raises(ValueError, match=sentence):
            progress.check()


class TestConsumerOffsets:
    def filled(self) -> ConsumerOffsets:
        table = ConsumerOffsets()
        table.put("g", "t", 0, Progress(10, ((12, 14), (20, 21)), 2))
        table.put("g", "t", 1, Progress(3))
        table.put("g", "%RETRY%g", 2, Progress(0))
        return table

    def test_what_was_never_committed_is_absent(self) -> None:
        table = ConsumerOffsets()
        assert (table.progress("g", "t", 0), table.query("g", "t", 0)) == (None, None)
        table.put("g", "t", 0, Progress(0))
        assert (table.progress("g", "t", 0), table.query("g", "t", 0)) == (Progress(0), 0)

    def test_a_report_is_joined_when_it_is_of_the_same_version(self) -> None:
        table = self.filled()
        assert table.joined("g", "t", 0, Progress(12, (), 2)) == Progress(14, ((20, 21),), 2)
        assert table.joined("g", "t", 0, Progress(100, (), 1)) == table.progress("g", "t", 0)
        assert table.joined("g", "t", 0, Progress(100, (), 3)) == table.progress("g", "t", 0)

    def test_a_group_without_an_offset_takes_over_what_is_reported(self) -> None:
        reported = Progress(5, ((7, 8),), 3)
        assert ConsumerOffsets().joined("g", "t", 0, reported) == reported

    def test_a_beginning_is_kept(self) -> None:
        table = ConsumerOffsets()
        assert table.begin("g", "t", 0, 7) == table.begin("g", "t", 0, 9) == Progress(7)

    def test_each_change_is_counted_and_told_and_what_changes_nothing_is_not(self) -> None:
        table, told = self.filled(), list[tuple[str, str, int]]()
        table.on_change(lambda *place: told.append(place))
        before = table.data_version
        table.put("g", "t", 1, Progress(3))
        table.begin("g", "t", 1, 9)
        table.forget_group("h")
        table.clamp(lambda topic, queue_id: 100)
        assert (told, table.data_version) == ([], before)
        table.set("g", "t", 1, 3)
        table.put("g", "t", 0, Progress(30, (), 2))
        table.forget_topic("%RETRY%g")
        assert told == [("g", "t", 1), ("g", "t", 0), ("g", "%RETRY%g", 2)]
        assert table.data_version == before + 3

    def test_what_lies_beyond_the_queue_is_cut_off(self) -> None:
        table = self.filled()
        changed = table.clamp(lambda topic, queue_id: 13 if queue_id == 0 else 3)
        assert changed == [("g", "t", 0, Progress(10, ((12, 14), (20, 21)), 2), Progress(10, ((12, 13),), 2))]
        assert table.clamp(lambda topic, queue_id: 2)[0][4] == Progress(2, (), 2)
        assert list(table.all()) == [("g", "t", 0, 2), ("g", "t", 1, 2), ("g", "%RETRY%g", 2, 0)]

    def test_json_round_trip(self) -> None:
        table, other = self.filled(), ConsumerOffsets()
        other.load_json(table.to_json())
        assert other.to_json() == table.to_json()
        assert other.progress("g", "t", 0) == Progress(10, ((12, 14), (20, 21)), 2)

    def test_rocketmq_s_document_has_no_ranges_and_no_versions(self) -> None:
        document = self.filled().to_json()
        assert document["offsetTable"] == {"t@g": {"0": 10, "1": 3}, "%RETRY%g@g": {"2": 0}}
        table = ConsumerOffsets()
        table.load_json({"dataVersion": {"counter": 1}, "offsetTable": document["offsetTable"]})
        assert table.progress("g", "t", 0) == Progress(10)

    @pytest.mark.parametrize(
        "changed",
        [
            {"offsetTable": {"t@g": {"0": -1}}},
            {"offsetTable": {"t@g": {"0": 10, "-1": 0}}},
            {"offsetTable": {"t@g": {"0": 10, str(1 << 31): 0}}},
            {"offsetTable": {"no group": {"0": 10}}},
            {"offsetTable": {"t@\ud800": {"0": 10}}},
            {"offsetTable": {"t@g": None}},
            {"finishedTable": {"t@g": {"0": "9+2"}}},
            {"finishedTable": {"t@g": {"0": "12"}}},
            {"finishedTable": {"t@g": []}},
            {"versionTable": {"t@g": {"0": -1}}},
            {"dataVersion": {"counter": COUNTER_MAX + 1}},
            {"dataVersion": {"counter": -1}},
        ],
    )
    def test_a_document_of_another_form_changes_nothing(self, changed: dict[str, Any]) -> None:
        table = self.filled()
        before = table.to_json()
        with pytest.raises((KeyError, TypeError, ValueError)):
            table.load_json(before | changed)
        assert table.to_json() == before
