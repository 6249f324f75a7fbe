"""What groups have finished, between a master and a replica: both end with the same, and lose nothing (bug zoo 24)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from mq_broker.core.consumer_offsets import (
    RENEWALS_MAX,
    RENEWALS_PER_TERM,
    RESETS_PER_TERM,
    ConsumerOffsets,
    Progress,
    version_of,
)
from mq_broker.core.limits import RANGES_PER_QUEUE_MAX
from mq_broker.core.topics import TopicConfig, TopicTable
from mq_broker.replication.frames import ProgressEntries
from mq_broker.replication.states import ENTRIES_BYTES_MAX, ProgressIn, ProgressOut
from mq_broker.store.progress_journal import Entry, encode_entry

PLACE = ("g", "t", 0)


def ranges_of(finished: set[int]) -> Progress:
    """The progress in which these offsets are finished, of version 0."""
    progress = Progress(0)
    for offset in sorted(finished):
        one = Progress(0, ((offset, offset + 1),)) if offset else Progress(1)
        progress = progress.merged(one)
    return progress


def finished_in(progress: Progress) -> set[int]:
    return {offset for offset in range(progress.end) if offset in progress}


def some_progress(rng: random.Random) -> Progress:
    finished = {offset for offset in range(12) if rng.random() < 0.5}
    return replace(ranges_of(finished), version=version_of(rng.randrange(3), rng.randrange(3)))


class TestReconciled:
    def test_order_and_repetition_do_not_matter(self) -> None:
        rng = random.Random(8)
        for _ in range(300):
            one, two, three = (some_progress(rng) for _ in range(3))
            together = one.reconciled(two).reconciled(three)
            together.check()
            assert together == three.reconciled(two.reconciled(one)) == two.reconciled(three).reconciled(one)
            assert together.reconciled(two) == together

    def test_the_higher_reset_wins_and_with_the_same_what_either_has_finished_is_finished(self) -> None:
        assert Progress(5).reconciled(Progress(2, ((7, 9),))) == Progress(5, ((7, 9),))
        assert Progress(50, (), 1).reconciled(Progress(3, (), 2)) == Progress(3, (), 2)

    def test_a_renewal_takes_nothing_out(self) -> None:
        """The master has begun after a crash; the replica has served alone meanwhile (mechanism H4)."""
        at_master, at_replica = Progress(5).renewed(1), Progress(9)
        assert at_master.reconciled(at_replica) == Progress(9, (), version_of(1, 0))

    def test_the_reset_of_one_side_and_the_renewal_of_the_other_both_hold(self) -> None:
        assert Progress(9, (), 1).reconciled(Progress(5).renewed(1)) == Progress(9, (), version_of(1, 1))

    def test_ranges_stay_within_what_is_allowed(self) -> None:
        even = tuple((at, at + 1) for at in range(4, 4 + 4 * RANGES_PER_QUEUE_MAX, 4))
        odd = tuple((at + 2, at + 3) for at, _ in even)
        both = Progress(0, even).reconciled(Progress(0, odd))
        both.check()
        assert both.ranges == tuple(sorted(even + odd))[:RANGES_PER_QUEUE_MAX]


class TestVersions:
    def test_a_master_of_a_new_term_renews_once(self) -> None:
        offsets = ConsumerOffsets()
        offsets.begin(*PLACE, 3)
        offsets.begin_term(1, 1)
        assert offsets.progress(*PLACE) == Progress(3), "the first term has no predecessor"
        for _ in range(2):
            offsets.begin_term(3, 3)
            assert offsets.progress(*PLACE) == Progress(3, (), version_of(2 * RENEWALS_PER_TERM, 2 * RESETS_PER_TERM))

    @pytest.mark.parametrize("first", ["lost", "now"])
    def test_what_a_lost_master_counts_as_finished_is_not_finished_at_the_one_promoted_without_it(
        self, first: str
    ) -> None:
        """It was sent back, and its retry stood in the part of the log that is lost."""
        lost, now = ConsumerOffsets(), ConsumerOffsets()
        for offsets in (lost, now):
            offsets.begin_term(1, 1)
            offsets.begin(*PLACE, 3)
        lost.put(*PLACE, Progress(4, ((6, 8),)))
        now.begin_term(2, 2)
        known = now.progress(*PLACE)
        assert known is not None
        for one, other in ((lost, now), (now, lost)) if first == "lost" else ((now, lost), (lost, now)):
            said = other.progress(*PLACE)
            assert said is not None
            assert one.reconcile(*PLACE, said, 500) == known

    def test_a_term_that_continues_a_whole_log_renews_nothing(self) -> None:
        offsets = ConsumerOffsets()
        offsets.begin(*PLACE, 3)
        offsets.begin_term(4, 2)
        version = version_of(RENEWALS_PER_TERM, RESETS_PER_TERM)
        assert offsets.progress(*PLACE) == Progress(3, (), version)
        offsets.begin_term(5, 2)
        assert offsets.joined(*PLACE, Progress(4, (), version)) == Progress(4, (), version)
        assert offsets.set(*PLACE, 1).resets > offsets.first_resets("g")

    def test_a_reset_by_a_later_master_is_newer_than_one_that_it_has_never_heard_of(self) -> None:
        """A master that was cut off, and what it has reset last, come back: both would be the fifth reset, say."""
        lost, now = ConsumerOffsets(), ConsumerOffsets()
        for offsets in (lost, now):
            offsets.begin_term(1, 1)
            offsets.set(*PLACE, 100)
        for offset in (200, 447):
            lost.set(*PLACE, offset)
        now.begin_term(2, 2)
        reset = now.set(*PLACE, 8)
        for one, other in ((lost, now), (now, lost)):
            known = other.progress(*PLACE)
            assert known is not None
            assert one.reconcile(*PLACE, known, 500) == reset

    def test_who_begins_later_has_the_renewals_of_the_broker(self) -> None:
        offsets = ConsumerOffsets()
        offsets.renew_versions()
        assert offsets.begin(*PLACE, 3) == Progress(3, (), version_of(1, 0))
        assert offsets.set("h", "t", 0, 3) == Progress(3, (), version_of(1, 1))
        assert offsets.joined("i", "t", 0, Progress(3)) == Progress(3, (), version_of(1, 0))
        again = ConsumerOffsets()
        again.load_json(offsets.to_json())
        assert again.begin("j", "t", 0, 1) == Progress(1, (), version_of(1, 0))

    def test_a_renewal_is_beyond_what_a_journal_has_kept_of_a_lost_one(self) -> None:
        offsets = ConsumerOffsets()
        offsets.restore(*PLACE, Progress(3, (), version_of(4, 0)))
        offsets.renew_versions()
        assert offsets.progress(*PLACE) == Progress(3, (), version_of(5, 0))

    def test_versions_never_grow_beyond_what_is_allowed(self) -> None:
        offsets = ConsumerOffsets()
        offsets.begin(*PLACE, 3)
        offsets.begin_term(RENEWALS_MAX, RENEWALS_MAX)
        known = offsets.progress(*PLACE)
        assert known is not None
        known.check()
        assert known.renewals == RENEWALS_MAX

    @pytest.mark.parametrize("renewals", [-1, RENEWALS_MAX + 1])
    def test_a_document_with_too_many_renewals_is_rejected(self, renewals: int) -> None:
        document = ConsumerOffsets().to_json() | {"renewals": renewals}
        with pytest.raises(ValueError, match="renewals"):
            ConsumerOffsets().load_json(document)


@dataclass
class Side:
    """One broker's part of it: its log of queue 0 of `t`, as identities of messages, and what it knows of group `g`."""

    log: list[int] = field(default_factory=list)
    offsets: ConsumerOffsets = field(default_factory=ConsumerOffsets)

    def __post_init__(self) -> None:
        self.topics = TopicTable(auto_create=False, default_queue_count=1, delay_level_count=1)
        self.topics.update(TopicConfig("t", 1, 1))
        self.on_disk = self.offsets.to_json()
        self.unflushed: list[tuple[int, int]] = []  # resets and message, since the last flush
        self.link()

    @property
    def log_end(self) -> int:
        return len(self.log)

    def queue(self, topic: str, queue_id: int) -> object | None:
        return self.log if self.log and (topic, queue_id) == PLACE[1:] else None

    def queue_end(self, topic: str, queue_id: int) -> int:
        return len(self.log) if (topic, queue_id) == PLACE[1:] else 0

    def link(self) -> None:
        """A new link: everything is to be told again."""
        self.out = ProgressOut(self.offsets)
        self.in_ = ProgressIn(self, self.topics, self.offsets, self.out)

    @property
    def known(self) -> Progress | None:
        return self.offsets.progress(*PLACE)

    def restart(self) -> None:
        """As after a kill: what is on disk is what is known."""
        self.offsets = ConsumerOffsets()
        self.offsets.load_json(self.on_disk)
        self.offsets.clamp(self.queue_end)
        self.unflushed = []

    def flush(self) -> list[tuple[int, int]]:
        """What is known is on disk; returns what was accepted since the last time."""
        self.on_disk, safe = self.offsets.to_json(), self.unflushed
        self.unflushed = []
        return safe


@dataclass
class Consumer:
    """A member: the messages that it has finished, and the version with which it reports them."""

    done: dict[int, int] = field(default_factory=dict)  # message by offset
    version: int = 0

    def report(self, side: Side, *, is_replica: bool) -> list[tuple[int, int]]:
        """Tell one side; returns what that side has accepted: resets, and message."""
        known = side.known
        if known is not None and known.version != self.version:
            self.version = known.version
            self.done = {offset: side.log[offset] for offset in finished_in(known)}
            return []
        said = replace(ranges_of(set(self.done)), version=self.version)
        if not is_replica and said.end > len(side.log):
            return []
        said = said.cut(len(side.log))
        side.offsets.put(*PLACE, side.offsets.joined(*PLACE, said))
        now = side.known
        assert now is not None
        self.version = now.version
        return [(now.resets, self.done[offset]) for offset in finished_in(said)]


class History:
    """A random history of a pair, and what must hold at its end."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.master, self.replica = Side(), Side()
        self.master.offsets.begin(*PLACE, 0)  # with a beginning at the master, which is on disk before it is answered
        self.master.flush()
        self.members = [Consumer(), Consumer()]
        self.ids = 0
        self.finished: set[int] = set()  # messages that any member has ever finished
        self.safe: set[tuple[int, int]] = set()  # accepted, and on the disk of the broker that has accepted it
        self.resets = 0
        self.connected = False
        self.old: list[tuple[Side, ProgressEntries]] = []  # frames that come late, or twice

    def run(self, steps: int) -> None:
        work = [self.send, self.copy, self.copy, self.finish, self.finish, self.finish, self.report, self.report]
        work += [self.exchange, self.exchange, self.flush, self.come_late, self.reset, self.crash, self.lose_tail]
        for _ in range(steps):
            self.rng.choice(work)()
        for _ in range(2):  # twice: a broker that has sent all may have to hear more
            self.connect()
            self.replica.log = list(self.master.log)
            self.replica.in_.catch_up()
            self.exchange()
            self.exchange()

    def send(self) -> None:
        for _ in range(self.rng.randrange(4)):
            self.ids += 1
            self.master.log.append(self.ids)

    def copy(self) -> None:
        if not self.connected:
            self.connect()
        at = len(self.replica.log)
        self.replica.log += self.master.log[at : at + self.rng.randrange(4)]
        self.replica.in_.catch_up()

    def finish(self) -> None:
        side, member = self.rng.choice([self.master, self.replica]), self.rng.choice(self.members)
        # A member that has heard of lost messages could get them from the replica until that is connected again.
        has_all_heard = side.known is not None and side.known.version == member.version
        if side.log and has_all_heard:
            offset = self.rng.randrange(len(side.log))
            if member.done.setdefault(offset, side.log[offset]) == side.log[offset]:
                self.finished.add(side.log[offset])

    def report(self) -> None:
        is_replica = self.rng.random() < 0.5
        side = self.replica if is_replica else self.master
        side.unflushed += self.rng.choice(self.members).report(side, is_replica=is_replica)

    def exchange(self) -> None:
        if self.connected:
            for side, other in ((self.master, self.replica), (self.replica, self.master)):
                if entries := side.out.take():
                    frame = ProgressEntries(entries, side.log_end)
                    self.old.append((other, frame))
                    if other.in_.merge(frame):
                        self.safe.update(other.flush())

    def come_late(self) -> None:
        if self.old and self.connected:
            side, frame = self.rng.choice(self.old)
            side.in_.merge(frame)

    def flush(self) -> None:
        self.safe.update(self.rng.choice([self.master, self.replica]).flush())

    def reset(self) -> None:
        if self.rng.random() < 0.3:
            now = self.master.offsets.set(*PLACE, self.rng.randrange(len(self.master.log) + 1))
            self.resets = now.resets
            self.safe.update(self.master.flush())

    def crash(self) -> None:
        self.connected = False
        self.rng.choice([self.master, self.replica]).restart()

    def lose_tail(self) -> None:
        """The master's power goes: the end of its log is lost, and its numbers are given again."""
        if self.rng.random() < 0.3:
            self.connected = False
            del self.master.log[self.rng.randrange(len(self.master.log) + 1) :]
            self.master.restart()
            self.master.offsets.renew_versions()
            self.safe.update(self.master.flush())

    def connect(self) -> None:
        """A new link: the replica cuts what is its own alone, and hears everything before the first bytes."""
        pairs = zip(self.replica.log, self.master.log, strict=False)
        common = next((at for at, (mine, theirs) in enumerate(pairs) if mine != theirs), None)
        common = min(len(self.replica.log), len(self.master.log)) if common is None else common
        if common < len(self.replica.log):
            self.replica.flush()
            del self.replica.log[common:]
            self.replica.restart()
            self.replica.flush()  # the checkpoint without which a cut is not over
        self.old = []  # of epochs that are over: such frames are rejected
        self.master.link()
        self.replica.link()
        self.connected = True
        self.exchange()

    def check(self) -> None:
        at_master, at_replica = self.master.known, self.replica.known
        assert at_master is not None
        assert at_master == at_replica
        assert at_master.resets == self.resets, "no reset is undone"
        messages = {self.master.log[offset] for offset in finished_in(at_master)}
        if not self.resets:
            assert messages <= self.finished, "nothing is taken for finished that is not"
        there = set(self.master.log)
        lost = {message for resets, message in self.safe if resets == self.resets and message in there} - messages
        assert not lost, "nothing that was finished is lost"


@pytest.mark.parametrize("block", range(8))
def test_both_sides_of_any_history_end_with_the_same_and_lose_nothing(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        history = History(seed)
        history.run(60)
        try:
            history.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def exchange_of(side: Side, *queue_ids: int) -> None:
    for queue_id in queue_ids:
        side.offsets.begin("g", "t", queue_id, 0)


def said(entries: bytes, log_end: int = 0) -> ProgressEntries:
    return ProgressEntries(entries, log_end)


def entry(progress: Progress | None, group: str = "g", topic: str = "t", queue_id: int = 0) -> bytes:
    return encode_entry(Entry(1, group, topic, queue_id, progress))


class TestMerge:
    @pytest.mark.parametrize(
        "wrong",
        [
            b"x",
            entry(Progress(2))[:-1],
            entry(Progress(2)) + b"HPRG",
            entry(None),
            entry(Progress(2), queue_id=-1),
            entry(Progress(2), group=""),
            entry(Progress(2), group="g\n"),
            bytes(len(entry(Progress(2)))),
        ],
    )
    def test_of_frames_in_which_anything_is_wrong_nothing_is_taken(self, wrong: bytes) -> None:
        side = Side([1, 2, 3])
        with pytest.raises(ValueError, match=r"entry|group"):
            side.in_.merge(said(entry(Progress(1)) + wrong))
        assert side.known is None

    def test_queues_that_a_topic_lacks_and_deleted_topics_are_passed_over_until_they_are_there(self) -> None:
        side = Side([1, 2, 3])
        side.topics.delete("u", {})
        side.in_.merge(said(entry(Progress(2), topic="u") + entry(Progress(2), queue_id=7)))
        assert side.offsets.places() == []

    def test_a_group_keeps_its_place_in_a_topic_that_this_side_was_never_told_of(self) -> None:
        side = Side([1, 2, 3])
        side.in_.merge(said(entry(Progress(2), topic="u")))
        assert side.offsets.progress("g", "u", 0) is not None

    def test_what_is_ahead_of_the_log_waits_for_it(self) -> None:
        side = Side([1, 2, 3])
        side.in_.merge(said(entry(Progress(2, ((4, 6),)))))
        assert side.known == Progress(2)
        side.log += [4, 5]
        side.in_.catch_up()
        assert side.known == Progress(2, ((4, 5),))
        side.log += [6]
        side.in_.catch_up()
        assert side.known == Progress(2, ((4, 6),))

    def test_what_depends_on_more_log_than_is_here_waits_for_it(self) -> None:
        side = Side([1, 2, 3])
        side.offsets.put(*PLACE, Progress(1))
        side.in_.merge(said(entry(Progress(2)), log_end=5))
        side.log += [4]
        side.in_.catch_up()
        assert side.known == Progress(1)
        side.log += [5]
        side.in_.catch_up()
        assert side.known == Progress(2)

    def test_under_a_steady_backlog_what_is_finished_comes_all_the_same_and_two_reports_wait_at_most(self) -> None:
        side = Side(list(range(100)))
        side.offsets.put(*PLACE, Progress(0))
        for finished in range(1, 90):
            side.in_.merge(said(entry(Progress(finished)), log_end=len(side.log) + 10))
            side.log += [0]
            side.in_.catch_up()
            assert len(side.in_._aside) <= 2
        assert side.known is not None
        assert 60 < side.known.offset < 90

    def test_a_renewal_does_not_wait(self) -> None:
        side = Side([1, 2, 3])
        side.offsets.put(*PLACE, Progress(1))
        assert side.in_.merge(said(entry(Progress(2).renewed(3)), log_end=5))
        assert side.known == Progress(1).renewed(3)
        side.log += [4, 5]
        side.in_.catch_up()
        assert side.known == Progress(2).renewed(3)

    def test_a_group_without_an_offset_gets_one_at_once(self) -> None:
        """Promoted without one, the replica would let it begin at the end."""
        side = Side([1, 2, 3])
        side.in_.merge(said(entry(Progress(1, ((2, 3),))), log_end=5))
        assert side.known == Progress(1)
        side.log += [4, 5]
        side.in_.catch_up()
        assert side.known == Progress(1, ((2, 3),))

    def test_what_waits_does_not_undo_a_reset(self) -> None:
        side = Side([1, 2, 3])
        side.in_.merge(said(entry(Progress(6))))
        side.in_.merge(said(entry(Progress(1, (), 1))))
        side.log += [4, 5, 6]
        side.in_.catch_up()
        assert side.known == Progress(1, (), 1)

    def test_an_offset_from_before_the_topic_was_deleted_is_not_taken(self) -> None:
        side = Side([1, 2, 3])
        side.topics.delete("t", {0: 3})
        side.topics.update(TopicConfig("t", 1, 1))
        side.in_.merge(said(entry(Progress(2))))
        assert side.known is None
        side.in_.merge(said(entry(Progress(3))))
        assert side.known == Progress(3)

    def test_an_offset_from_before_the_group_was_deleted_is_not_taken(self) -> None:
        side = Side([1, 2, 3])
        side.offsets.first_resets = lambda _group: 1
        side.in_.merge(said(entry(Progress(2))))
        assert side.known is None
        side.in_.merge(said(entry(Progress(1, (), 1))))
        assert side.known == Progress(1, (), 1)


class TestTake:
    def test_everything_at_first_and_then_what_changes(self) -> None:
        side = Side([1, 2, 3])
        exchange_of(side, 0, 1)
        side.link()
        first = side.out.take()
        assert first == b"".join(
            encode_entry(Entry(side.offsets.data_version, "g", "t", queue_id, Progress(0))) for queue_id in (0, 1)
        )
        assert (side.out.take(), side.out.is_waiting) == (b"", False)
        side.offsets.put(*PLACE, Progress(2))
        assert side.out.take() == encode_entry(Entry(side.offsets.data_version, *PLACE, Progress(2)))

    def test_what_was_just_taken_over_is_not_echoed_unless_more_is_known(self) -> None:
        side = Side([1, 2, 3])
        side.in_.merge(said(entry(Progress(2)), log_end=3))
        assert side.out.take() == b""
        side.in_.merge(said(entry(Progress(9)), log_end=3))
        assert side.out.take() == b"", "the other side knows more than this one"
        side = Side([1, 2, 3])
        side.offsets.put(*PLACE, Progress(0, ((1, 2),)))
        side.out.take()
        side.in_.merge(said(entry(Progress(0, ((2, 3),)))))
        assert side.out.take() == encode_entry(Entry(side.offsets.data_version, *PLACE, Progress(0, ((1, 3),))))

    def test_a_frame_has_a_mebibyte_at_most(self) -> None:
        side = Side()
        many = tuple((at, at + 1) for at in range(2, 2 + 2 * RANGES_PER_QUEUE_MAX, 2))
        for queue_id in range(40):
            side.offsets.put("g", "t", queue_id, Progress(0, many))
        frames = []
        while frame := side.out.take():
            frames.append(frame)
        assert len(frames) == 3
        assert max(map(len, frames)) <= ENTRIES_BYTES_MAX

    def test_what_is_forgotten_is_not_told(self) -> None:
        side = Side([1, 2, 3])
        side.offsets.put(*PLACE, Progress(2))
        side.offsets.forget_topic("t")
        assert side.out.take() == b""

    def test_after_its_end_a_link_hears_nothing(self) -> None:
        side = Side([1, 2, 3])
        side.out.close()
        side.offsets.put(*PLACE, Progress(2))
        assert side.out.take() == b""
