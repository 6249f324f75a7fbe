"""Large states are written without holding up the event loop, as they were at one moment, and they have limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import pytest

from mq_broker.core import producer_sequences
from mq_broker.core.consumer_offsets import ConsumerOffsets
from mq_broker.core.producer_sequences import Numbering, ProducerSequences, Stretch
from mq_broker.core.progress import Progress
from mq_broker.core.subscription_groups import SubscriptionGroup, SubscriptionGroups
from mq_broker.core.topics import TopicConfig, TopicTable
from mq_broker.processor.consume_progress import QUEUES_PER_STEP
from mq_broker.store import state_files
from mq_broker.store.json_state import decode_document, encode_document
from mq_broker.store.state_files import LargeState
from mq_broker.testing import incoming, produce, running_broker
from osenv import SimClock, SimDisk

P = ParamSpec("P")
T = TypeVar("T")


def store(sequences: ProducerSequences, producer_id: int, sequence: int, topic: str = "t", queue_id: int = 0) -> None:
    stretch = Stretch(sequence, 1, topic, queue_id, 3 * sequence)
    sequences.stored(Numbering(producer_id, 0, sequence, 1), (topic, queue_id), stretch, 1_000)


def offsets() -> tuple[ConsumerOffsets, list[Callable[[], object]]]:
    state = ConsumerOffsets()
    for group in ("g", "h"):
        for queue_id in range(3):
            state.put(group, "t", queue_id, Progress(queue_id, ((10, 12),)))
    return state, [
        lambda: state.put("g", "t", 1, Progress(5)),
        lambda: state.put("g", "t", 7, Progress(5)),
        lambda: state.put("new", "t", 0, Progress(1)),
        lambda: state.set("h", "t", 0, 9),
        lambda: state.restore("h", "t", 2, None),
        lambda: state.forget_group("g"),
        state.renew_versions,
    ]


def topics() -> tuple[TopicTable, list[Callable[[], object]]]:
    state = TopicTable(auto_create=True, default_queue_count=4, delay_level_count=18)
    state.update(TopicConfig("a", 4, 4))
    state.update(TopicConfig("b", 4, 4))
    state.delete("b", {0: 3})
    return state, [
        lambda: state.update(TopicConfig("a", 8, 8)),
        lambda: state.update(TopicConfig("c", 8, 8)),
        lambda: state.update(TopicConfig("b", 4, 4)),
        lambda: state.delete("b", {0: 9, 1: 2}),
        lambda: state.delete("a", {0: 1}),
    ]


def groups() -> tuple[SubscriptionGroups, list[Callable[[], object]]]:
    state = SubscriptionGroups(auto_create=True)
    state.update(SubscriptionGroup("g"))
    return state, [
        lambda: state.update(SubscriptionGroup("g", retry_max_times=1)),
        lambda: state.get_or_create("h"),
        lambda: state.forget_offsets("g", 4, 0),
        lambda: state.delete("g"),
    ]


def sequences() -> tuple[ProducerSequences, list[Callable[[], object]]]:
    state = ProducerSequences()
    for producer_id in (1, 2):
        for sequence in (1, 3, 5):
            store(state, producer_id, sequence)
    store(state, 2, 1, queue_id=1)
    return state, [
        lambda: store(state, 1, 7),
        lambda: store(state, 1, 2),
        lambda: store(state, 1, 1, queue_id=2),
        lambda: state.stored(Numbering(2, 1, 8, 6), ("t", 0), Stretch(8, 1, "t", 0, 90), 5_000),
        lambda: store(state, 3, 1),
        lambda: state.expire(10**12),
    ]


@pytest.mark.parametrize("make", [offsets, topics, groups, sequences])
def test_a_frozen_document_is_that_of_its_moment_whatever_changes(
    make: Callable[[], tuple[LargeState, list[Callable[[], object]]]],
) -> None:
    state, changes = make()
    assert isinstance(state, LargeState)
    for change in changes:
        before = json.dumps(state.to_json())
        first, second = state.frozen(), state.frozen()
        change()
        after = json.dumps(state.to_json())
        assert after != before
        assert json.dumps(first()) == json.dumps(second()) == before


@pytest.mark.parametrize("make", [offsets, topics, groups, sequences])
def test_a_document_reads_back_as_it_was(make: Callable[[], tuple[LargeState, list[Callable[[], object]]]]) -> None:
    state, _ = make()
    content = encode_document(state.to_json(), 77)
    assert decode_document(content).items() >= json.loads(json.dumps(state.to_json())).items()


class WatchedDisk(SimDisk):
    """Knows whether it is doing something that on a real disk is done in another thread."""

    is_offloaded = False

    async def offload(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.is_offloaded = True
        try:
            return call(*args, **kwargs)
        finally:
            self.is_offloaded = False


async def test_documents_are_encoded_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, clock = WatchedDisk(), SimClock()
    encoded: list[bool] = []

    def encode(document: dict[str, Any], log_offset: int) -> bytes:
        encoded.append(disk.is_offloaded)
        return encode_document(document, log_offset)

    monkeypatch.setattr(state_files, "encode_document", encode)
    async with running_broker(disk, clock) as broker:
        await produce(broker, incoming("t", [b"x"] * 5))
        broker.offsets.commit("g", [("t", 0, Progress(4))])
        await clock.advance(20)
        await broker.store.checkpoint()
    assert len(encoded) > 3
    assert all(encoded)


async def test_the_search_for_what_is_not_consumed_leaves_turns_to_others() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        await produce(broker, incoming("t", [b"x"]))
        for number in range(4 * QUEUES_PER_STEP):
            broker.consumer_offsets.put(f"g{number}", "t", 0, Progress(0))
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        found = await broker.consume_progress.unconsumed_below(broker.store.log_end)
        counting.cancel()
        assert len(found) == 4 * QUEUES_PER_STEP
        assert turns >= 3


class TestGapsInNumbers:
    def test_together_they_have_a_limit_in_bytes_and_a_producer_with_few_loses_none(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(producer_sequences, "STRETCHES_BYTES_MAX", 50_000)
        sequences = ProducerSequences()
        for sequence in (1, 3, 5, 7):
            store(sequences, 99, sequence, "honest")
        for producer_id in range(1, 9):
            for sequence in range(1, 2_000, 2):
                store(sequences, producer_id, sequence)
        assert len(encode_document(sequences.to_json(), 0)) < 60_000
        known = sequences.stored_before(Numbering(99, 0, 1, 1), "honest", 0, 8)
        assert [stretch.base_sequence for stretch in known] == [1, 3, 5, 7]
        newest = sequences.stored_before(Numbering(8, 0, 1_999, 1), "t", 0, 1)
        assert [stretch.base_sequence for stretch in newest] == [1_999]

    def test_what_is_forgotten_or_answered_counts_no_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(producer_sequences, "STRETCHES_BYTES_MAX", 10_000)
        sequences = ProducerSequences()
        for producer_id in range(1, 50):
            for sequence in range(1, 200, 2):
                store(sequences, producer_id, sequence)
            sequences.stored(Numbering(producer_id, 0, 300, 300), ("t", 0), Stretch(300, 1, "t", 0, 9_000), 1_000)
        for sequence in range(1, 200, 2):
            store(sequences, 77, sequence)
        sequences.expire(10**12)
        for sequence in range(1, 400, 2):
            store(sequences, 88, sequence)
        known = sequences.stored_before(Numbering(88, 0, 1, 1), "t", 0, 400)
        assert len(known) == 200, "nothing was cut: what others left is not counted any more"

    def test_the_limit_holds_after_a_restart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sequences = ProducerSequences()
        for sequence in range(1, 2_000, 2):
            store(sequences, 1, sequence)
        document = sequences.to_json()
        monkeypatch.setattr(producer_sequences, "STRETCHES_BYTES_MAX", 10_000)
        again = ProducerSequences()
        again.load_json(document)
        store(again, 1, 2_001)
        assert len(encode_document(again.to_json(), 0)) < 10_000
