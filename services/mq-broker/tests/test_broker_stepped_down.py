"""A master that has stepped down writes nothing more, and goes on: its successor needs the rest of its log."""

from __future__ import annotations

import asyncio

from mq_broker.processor.broker import Broker
from mq_broker.testing import incoming, produce, read_all, running_broker
from osenv import SimClock, SimDisk


async def test_a_message_that_comes_due_does_not_end_a_master_that_has_stepped_down() -> None:
    """Its delivery is the successor's; seed 1 of the sweep `replicas`."""
    clock = SimClock()
    ended = asyncio.Event()

    async with running_broker(SimDisk(), clock, work=lambda broker: _run(broker, ended)) as broker:
        await produce(broker, incoming("orders", [b"later"], delay_level=1))
        end, _ = await broker.replication.step_down(broker.replication.epoch)
        await clock.advance(30.0)
        assert not ended.is_set()
        assert broker.store.log_end == end
        assert await read_all(broker, "orders") == []


async def _run(broker: Broker, ended: asyncio.Event) -> None:
    try:
        await broker.run()
    finally:
        ended.set()
