"""Messages that wait, under random histories of everything that may happen to their broker (figure G20)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from delay_faults import small_numbers
from delay_histories import run_sample
from delay_world import DelayWorld
from simulation import run_simulation

from mq_broker.store.message_store import FlushDiskType


@pytest.mark.mechanism("D3", "D4", "D6", "D7")
@pytest.mark.timeout(600)
def test_delays_keep_their_promises_in_every_history(record_property: Callable[[str, object], None]) -> None:
    record_property("figure", run_sample())


def test_what_a_broker_delivered_before_it_died_is_held_to_its_own_clock() -> None:
    async def story() -> None:
        world = DelayWorld(FlushDiskType.SYNC_FLUSH)
        await world.open()
        await world.step(world.wall_jumps(days=1))
        await world.step(world.send(1, deliver_in_ms=1))
        await world.step(world.cut(lambda: world.advance(1.0), 1_000, power=False, seed=0, again=True))
        assert world.model.counts["deliveries"] == 1
        await world.close()

    run_simulation(story())


def test_messages_that_waited_while_the_clock_was_set_back_come_in_their_millisecond() -> None:
    """More than is read ahead: the timer read those again and again whose place in its order followed the old clock."""

    async def story() -> None:
        world = DelayWorld(FlushDiskType.ASYNC_FLUSH)
        await world.open()
        await world.step(world.restart(clean=False))
        await world.step(world.checkpoint())
        await world.step(world.send(11, deliver_in_ms=4_999, padding=300))
        await world.step(world.advance(0.0004))
        await world.step(world.recall("m1"))
        await world.step(world.send(11, level=1, key="b", padding=300))
        await world.step(world.recall("b"))
        await world.step(world.wall_jumps(days=-1))
        await world.step(world.advance(0.001))
        await world.finish()
        assert world.model.counts["deliveries"] == 10
        await world.close()

    with small_numbers():
        run_simulation(story())
