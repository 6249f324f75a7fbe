"""Random histories of the order of due times, beside a list that knows everything: what is not done comes out once."""

from __future__ import annotations

import asyncio

import pytest

from mq_broker.schedule import timer_index, timer_runs
from mq_broker.testing_closely import FOREVER_MS, ThreadedDisk, Waiting
from osenv import SeededRng

HISTORIES = 240
STEPS = 80
SPAN_MS = 400  # of due times: many are equal


class History:
    """One owner with its background task, from one accident to the next."""

    def __init__(self, seed: int) -> None:
        self.rng = SeededRng(seed)
        self.world = Waiting(ThreadedDisk(), keys_in_memory=self.rng.choice([2, 8, 40]))
        self.world.open()
        self.now_ms = 0
        self.running = asyncio.create_task(self.world.index.run())

    async def run(self) -> None:
        steps = [self.add, self.add, self.take, self.take, self.finish_some, self.pause, self.pause, self.flush]
        accidents = [self.stop, self.kill, self.crash, self.reset]
        for _ in range(STEPS):
            assert not self.running.done()
            await self.rng.choice(accidents if self.rng.random() < 0.12 else steps)()
        expected = self.world.due()
        assert await self.world.drain(self.rng.randrange(1, 50)) == expected
        await self._end_task()
        await self.world.index.close()
        assert self.world.open() == len(self.world.dues)
        assert await self.world.index.take_due(FOREVER_MS, 1) == []
        self.world.index.release()

    async def add(self) -> None:
        self.world.add(*(self.now_ms + self.rng.randrange(0, SPAN_MS) for _ in range(self.rng.randrange(1, 60))))

    async def take(self) -> None:
        self.now_ms += self.rng.randrange(0, 50)
        count = self.rng.randrange(1, 40)
        expected = self.world.due(self.now_ms)
        next_due_ms = self.world.index.next_due_ms
        if expected:
            assert next_due_ms is not None
            assert next_due_ms <= expected[0][0]
        taken = await self.world.index.take_due(self.now_ms, count)
        assert taken == expected[:count]
        await self._pass_time()
        back = [item for item in taken if self.rng.random() < 0.2]
        self.world.finish(item for item in taken if item not in back)
        for due_ms, offset in back:
            self.world.index.add(due_ms, offset)

    async def finish_some(self) -> None:
        self.world.finish(item for item in self.world.due() if self.rng.random() < 0.1)

    async def pause(self) -> None:
        await self._pass_time()

    async def flush(self) -> None:
        assert await self.world.index.flush()

    async def stop(self) -> None:
        await self._end_task()
        await self.world.index.close()
        self.world.kill()
        assert self.world.open() == len(self.world.dues)
        self._start_task()

    async def kill(self) -> None:
        self.world.kill()
        await self._start_again()

    async def crash(self) -> None:
        self.world.crash(self.rng)
        await self._start_again()

    async def reset(self) -> None:
        await self.world.index.reset()
        self.world.add_again(0)

    async def _start_again(self) -> None:
        await self._end_task()
        self.world.index.release()
        self.world.open()
        self._start_task()

    def _start_task(self) -> None:
        self.running = asyncio.create_task(self.world.index.run())

    async def _end_task(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)

    async def _pass_time(self) -> None:
        for _ in range(self.rng.randrange(0, 30)):
            await asyncio.sleep(0)


@pytest.mark.mechanism("D7")
@pytest.mark.parametrize("part", range(4))
async def test_what_is_not_done_comes_out_once_and_in_order(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_index, "CHANGES_MAX", 50)
    monkeypatch.setattr(timer_runs, "FAN_IN", 3)
    for seed in range(part, HISTORIES, 4):
        try:
            await History(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
