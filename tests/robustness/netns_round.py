"""One round: a pair under load, several faults one after the other, and the judgement of its history (figure G7).

`python netns_round.py SEED PREFIX FOLDER SECONDS` inside the namespace of the clients; after SECONDS it begins no
further fault. Writes FOLDER/outcome.json. Its parent takes the namespaces down, with whatever runs in them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from kills import read_records
from netns_check import violations
from netns_faults import Attack, Fault, min_in_sync_of, plan
from netns_history import SEND_OK, History, Place, Seen, Sent, Stored, Together, name_of, read_lines
from netns_logs import differences
from netns_network import Faults, Places
from netns_pair import BROKER, Pair, progress_of
from sweep import Outcome

from hourglass_local.process import ManagedProcess
from hourglass_local.waiting import NotInTimeError, eventually
from mqclient import Admin, MQClientError
from osenv import SeededRng

TOPIC, QUEUES, GROUP = "numbers", 3, "auditors"
SENT_BETWEEN = 150  # acknowledged messages between two faults
TIMEOUT_S = 45.0
OUTCOME = "outcome.json"
SAID_MAX = 20


@dataclass
class Round:
    """The pair, its load, and what happens to them."""

    seed: int
    folder: Path
    places: Places
    deadline: float
    together: list[Together] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.min_in_sync = min_in_sync_of(self.seed)
        self.pair = Pair(self.folder, self.places, self.min_in_sync)
        self.attack = Attack(self.pair, Faults(self.places), SeededRng(self.seed))
        self._sent, self._seen = self.folder / "sent.jsonl", self.folder / "seen.jsonl"
        url = self.pair.url
        sending = [url, TOPIC, BROKER, str(QUEUES), str(self.seed), str(self._sent)]
        self._producer = self._client("producer", sending)
        self._consumer = self._client("consumer", [url, TOPIC, GROUP, str(self._seen)])

    async def run(self) -> Outcome:
        """All of it. Raises what keeps it from coming to a judgement."""
        async with self._processes():
            async with Admin(self.pair.url) as admin:
                await self._set_up(admin)
                faults = plan(self.seed)
                while faults and time.monotonic() < self.deadline:
                    await self._survive(faults.pop(0))
                history, wrong = await self._look_at_the_end(admin)
            wrong += await self.pair.stop()
        stores = [node.store for node in self.pair.nodes.values()]
        wrong += await asyncio.to_thread(differences, *stores)
        wrong += self._add_what_is_on_disk(history)
        wrong += await asyncio.to_thread(violations, history)
        return Outcome(0 if faults else 1, tuple(wrong), self._counts(history))

    async def _survive(self, fault: Fault) -> None:
        try:
            await self.attack.begin(fault)
            self.together.append(await self.pair.whole())
            await self._some_more_messages()
        except Exception as error:
            error.add_note(f"fault: {fault.value}; the brokers say: {self.pair.seen}")
            raise

    # ------------------------------------------------------------------------------------------------- the load

    @asynccontextmanager
    async def _processes(self) -> AsyncIterator[None]:
        await self.pair.start()
        watching = asyncio.create_task(self.pair.watch())
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            for client in (self._producer, self._consumer):
                await client.terminate()

    async def _set_up(self, admin: Admin) -> None:
        self.together.append(await self.pair.whole())

        async def made() -> bool:
            try:
                await admin.update_topic(TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES)
            except MQClientError:
                return False
            return True

        await eventually(made, TIMEOUT_S, "the topic is made")
        self._consumer.launch()
        self._producer.launch()
        await self._some_more_messages()

    async def _some_more_messages(self) -> None:
        wanted = self._acknowledged() + SENT_BETWEEN

        def are_there() -> bool:
            self._producer.check()
            self._consumer.check()
            return self._acknowledged() >= wanted

        await eventually(are_there, TIMEOUT_S, f"{wanted} messages with SEND_OK", interval_s=0.1)

    def _acknowledged(self) -> int:
        return self._sent.read_bytes().count(f'"{SEND_OK}"'.encode()) if self._sent.exists() else 0

    def _client(self, name: str, arguments: list[str]) -> ManagedProcess:
        async def ready() -> bool:
            return True

        return ManagedProcess(
            name,
            f"netns_{name}",
            arguments,
            ready=ready,
            log_path=self.folder / "logs" / f"{name}.log",
        )

    # ------------------------------------------------------------------------------------------------- the end

    async def _look_at_the_end(self, admin: Admin) -> tuple[History, list[str]]:
        """The history without what is on disk, and what is wrong at first sight."""
        await self._producer.terminate()
        self.together.append(await self.pair.whole())
        master = await self.pair.master()
        await self._consume_the_rest(admin)
        await self._consumer.terminate()
        wrong = [
            f"the {client.name} did not stop well, code {client.exit_code}: {client.tail(3)}"
            for client in (self._producer, self._consumer)
            if client.was_killed_to_stop or client.exit_code != 0
        ]
        ours, theirs = self.pair.nodes[master], self.pair.nodes[self.pair.other(master)]
        records = await read_records(ours.address, TOPIC, QUEUES)
        if records != await read_records(theirs.address, TOPIC, QUEUES):
            wrong.append("master and replica give consumers different messages")
        history = History(self.seed, synchronous=self.min_in_sync > 1)
        history.sent, history.seen = list(read_lines(self._sent, Sent)), list(read_lines(self._seen, Seen))
        history.stored = [
            Stored(Place(one.queue_id, one.queue_offset), one.log_offset, "{}:{}".format(*one.store_host), one.body)
            for queue_id in records
            for one in records[queue_id]
        ]
        history.promotions, history.together = self.attack.promotions, self.together
        history.progress = await progress_of(ours.address, GROUP, TOPIC) or {}
        return history, [*wrong, *await self._compare_progress(theirs.address, history.progress)]

    async def _compare_progress(self, replica: str, progress: dict[int, int]) -> list[str]:
        """The replica hears of it in a moment."""

        async def is_same() -> bool:
            return await progress_of(replica, GROUP, TOPIC) == progress

        try:
            await eventually(is_same, TIMEOUT_S, "the replica knows how far the group is", interval_s=0.2)
        except NotInTimeError:
            return [
                f"the group has come to {progress}, and its replica says {await progress_of(replica, GROUP, TOPIC)}"
            ]
        return []

    async def _consume_the_rest(self, admin: Admin) -> None:
        """Wait as long as there is hope; what has not been consumed then is seen by the judgement."""

        async def consumed() -> bool:
            try:
                stats = await admin.consume_stats(GROUP, TOPIC)
            except MQClientError:
                return False
            return bool(stats.queues) and stats.lag == 0

        with suppress(NotInTimeError):
            await eventually(consumed, TIMEOUT_S, "everything is consumed", interval_s=0.2)

    def _add_what_is_on_disk(self, history: History) -> list[str]:
        nodes = list(self.pair.nodes.values())
        history.reigns = self.pair.reigns
        history.epochs = nodes[0].epochs()
        history.kept = b"".join([*self.attack.kept, *(node.quarantine for node in nodes)])
        if history.epochs != nodes[1].epochs():
            return [f"the brokers remember other epochs: {history.epochs} and {nodes[1].epochs()}"]
        return []

    def _counts(self, history: History) -> dict[str, int]:
        counts = Counter(self.attack.counts)
        counts.update(f"sent: {one.outcome}" for one in history.sent)
        names = [name_of(one.body) for one in history.stored]
        counts["stored by two brokers"] = len(names) - len(set(names))
        counts["consumed"] = len(history.seen)
        counts["consumed again"] = len(history.seen) - len({(one.place, one.crc32) for one in history.seen})
        counts["epochs"] = len(history.reigns)
        counts["bytes in quarantine"] = len(history.kept)
        counts[f"rounds with minInSyncReplicas={self.min_in_sync}"] = 1
        return dict(counts)


async def main(seed: int, prefix: str, folder: Path, seconds: float) -> None:
    """Write the outcome; an error that keeps the round from its end is its violation."""
    played = Round(seed, folder, Places(prefix), time.monotonic() + seconds)
    try:
        outcome = await played.run()
    except Exception as error:
        said = "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
        outcome = Outcome(0, (said,), dict(played.attack.counts))
    if len(outcome.violations) > SAID_MAX:
        more = f"{len(outcome.violations)} sentences in all"
        outcome = dataclasses.replace(outcome, violations=(*outcome.violations[:SAID_MAX], more))
    (folder / OUTCOME).write_text(json.dumps(dataclasses.asdict(outcome)), encoding="utf-8")


if __name__ == "__main__":
    seed, prefix, folder, seconds = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    uvloop.run(main(int(seed), prefix, Path(folder), float(seconds)))
