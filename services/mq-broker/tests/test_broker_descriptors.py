"""Descriptors never run out: not for the store by its queues, nor by silent connections."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from mq_broker.core.limits import DESCRIPTORS_MIN, KEPT_DESCRIPTORS, OPEN_FILES_MAX, DescriptorBudget
from mq_broker.processor.broker import Broker
from mq_broker.testing import broker_options, flush_and_index, incoming, produce, running_broker, store_options
from mqproto.codes import ResponseCode
from osenv import SeededRng, SimClock, SimDisk


@pytest.mark.parametrize("limit", [DESCRIPTORS_MIN, 1_024, 20_000, 1_048_576])
def test_the_shares_of_all_never_exceed_the_limit(limit: int) -> None:
    budget = DescriptorBudget.of(limit)
    connections = budget.connections + budget.frames_connections
    assert connections + budget.replica_connections + budget.open_files == limit - KEPT_DESCRIPTORS
    assert connections >= budget.open_files >= 32
    assert budget.open_files <= OPEN_FILES_MAX


def test_a_limit_too_small_for_a_broker_is_rejected_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"may open 255 files .*ulimit -n"):
        DescriptorBudget.of(255)


async def test_queues_without_a_descriptor_are_on_disk_after_a_checkpoint_that_counts_them() -> None:
    disk, options = SimDisk(), replace(store_options(), open_files_max=1)
    async with running_broker(disk, SimClock(), store=options, clean_stop=False, work=flush_and_index) as broker:
        for queue_id in range(4):
            await produce(broker, incoming("t", [b"%d" % queue_id], queue_id=queue_id))
        await broker.store.checkpoint()
    left = next(disk.lost_states(SeededRng(1), exhaustive_units_max=0))
    broker = Broker(left, SimClock(), broker_options(), options)
    assert not broker.store.open(lambda record: None).rebuilt
    assert [broker.store.queue_end("t", queue_id) for queue_id in range(4)] == [1, 1, 1, 1]


async def test_a_queue_whose_file_cannot_be_opened_rejects_the_batch_and_leaves_nothing_of_it() -> None:
    disk, options = SimDisk(), replace(store_options(), open_files_max=1)
    async with running_broker(disk, SimClock(), store=options) as broker:
        for queue_id in range(3):
            await produce(broker, incoming("t", [b"x"], queue_id=queue_id))
        before = broker.store.log_end

        def reject(call: str, path: Path) -> None:
            if call == "open" and path.parent == options.layout.consume_queue("t", 0):
                raise OSError(errno.EMFILE, "too many open files")

        disk.before = reject
        outcomes = await produce(broker, *(incoming("t", [b"y"], queue_id=queue_id) for queue_id in (1, 0)))
        disk.before = lambda call, path: None
        assert {outcome.code for outcome in outcomes} == {ResponseCode.SYSTEM_ERROR}
        assert broker.store.log_end == before
        assert broker.store.failure is None
        outcomes = await produce(broker, *(incoming("t", [b"z"], queue_id=queue_id) for queue_id in (1, 0)))
        assert [outcome.base_queue_offset for outcome in outcomes] == [1, 1]
