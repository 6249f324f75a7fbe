"""Large states are written without holding up the event loop, as they were at one moment, and they have limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import pytest

from mq_broker.core.consumer_offsets import ConsumerOffsets, Progress
from mq_broker.core.producer_sequences import BatchSequence, ProducerSequences
from mq_broker.core.producer_table import Stretch
from mq_broker.core.subscription_groups import SubscriptionGroup, SubscriptionGroups
from mq_broker.core.topics import TopicConfig, TopicTable
from mq_broker.processor.group_administration import QUEUES_PER_STEP
from mq_broker.store import state_files
from mq_broker.store.state_files import LargeState, decode_document, encode_document
from mq_broker.testing import incoming, produce, running_broker
from osenv import SimClock, SimDisk

P = ParamSpec("P")
T = TypeVar("T")


def store(sequences: ProducerSequences, producer_id: int, sequence: int, topic: str = "t", queue_id: int = 0) -> None:
    stretch = Stretch(sequence, 1, topic, queue_id, 3 * sequence)
    sequences.stored(BatchSequence(producer_id, 0, sequence, 1), (topic, queue_id), stretch, 1_000)


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
        lambda: state.stored(BatchSequence(2, 1, 8, 6), ("t", 0), Stretch(8, 1, "t", 0, 90), 5_000),
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
