"""Consumer groups on a real broker in memory, and everything that may happen to them
(docs/reference/faults.md#clients).

One topic, a concurrent group and an orderly group, members that come, go, die and lose the network, a broker that dies,
an operator who resets offsets. `group_model.py` says what must stay true; this file makes it happen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from dataclasses import replace
from typing import Any, ClassVar

from client_tasks import CLIENT, ClientTasks, context_of
from group_model import GroupModel, InvariantError, Place

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from mq_broker.config import BrokerConfig
from mq_broker.embedded import EmbeddedBroker
from mq_broker.store.message_store import FlushDiskType
from mqclient import (
    Admin,
    ClientConfig,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    ConsumerConfig,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageQueue,
    MQClientError,
    Producer,
    PushConsumer,
)
from mqclient.errors import BrokerUnreachableError

TOPIC, QUEUES = "orders", 2
CONCURRENT, ORDERLY = "concurrent", "orderly"
GROUPS = (CONCURRENT, ORDERLY)
MEMBERS_MAX = 3
SUSPEND_S = 0.5
COMMIT_LOG_FILE_BYTES = 64 * 1024


class CuttableBroker(EmbeddedBroker):
    """A broker whose network to single clients can be cut. Its calls know whose they are."""

    def __init__(self, seed: int, flush: FlushDiskType) -> None:
        super().__init__(
            f"groups-{seed}",
            delay_levels="1s 1s 1s 2s",
            flush_disk_type=flush,
            commit_log_file_bytes=COMMIT_LOG_FILE_BYTES,
            seed=seed,
        )
        self._cut: set[str] = set()
        self._of_client: dict[str, set[asyncio.Task[Any]]] = {}

    def configure(self, **changes: Any) -> None:
        """Other settings, from the next start on."""
        self._config = replace(self._config, **changes)

    def cut(self, client: str) -> None:
        self._cut.add(client)
        self.break_calls(client)

    def mend(self) -> None:
        self._cut.clear()

    def break_calls(self, client: str) -> None:
        for task in list(self._of_client.get(client, ())):
            task.cancel()

    def _method(self, path: str) -> Any:
        if CLIENT.get() in self._cut:
            raise BrokerUnreachableError("the network is cut")
        return super()._method(path)

    def _track(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        mine = self._of_client.setdefault(CLIENT.get(), set())
        mine.add(task)
        task.add_done_callback(mine.discard)
        return super()._track(task)


class Member:
    """One consumer. Everything that it does runs in tasks of its own, so that it can die without a word."""

    def __init__(self, world: GroupWorld, group: str, name: str, process: str = "") -> None:
        """`process` is its name among simulated processes, if that is not the instance name."""
        self.group, self.name = group, process or name
        self.is_cut = False
        self._world = world
        self._context = context_of(self.name)
        config = ConsumerConfig(
            consume_thread_min=3, consume_thread_max=3, pull_batch_size=5, suspend_current_queue_time_s=SUSPEND_S
        )
        self.consumer = PushConsumer(
            group,
            world.broker.url,
            client_config=ClientConfig(instance_name=name),
            consumer_config=config,
            consume_from_where=world.BEGINS.get(group, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET),
        )
        self.consumer.subscribe(TOPIC)
        if group == ORDERLY:
            self.consumer.register_message_listener_orderly(self._consume_orderly)
        else:
            self.consumer.register_message_listener(self._consume)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """As a task of this client."""
        return asyncio.get_running_loop().create_task(coroutine, context=self._context)

    def die(self) -> None:
        """As by SIGKILL: nothing of it runs any more, and its connections break."""
        self._world.tasks.kill(self.name)

    @property
    def queues(self) -> set[int]:
        return {queue.queue_id for queue in self.consumer.queues if queue.topic == TOPIC}

    async def _consume(self, messages: list[MessageExt]) -> ConsumeStatus:
        consumed = await self._world.listen(self, messages)
        return ConsumeStatus.CONSUME_SUCCESS if consumed else ConsumeStatus.RECONSUME_LATER

    async def _consume_orderly(self, messages: list[MessageExt]) -> ConsumeOrderlyStatus:
        consumed = await self._world.listen(self, messages)
        return ConsumeOrderlyStatus.SUCCESS if consumed else ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


SETTLED_S_MAX = 400.0  # tries of a message, the lock of a dead member, rebalances: with room


class GroupWorld:
    """The history of one broker and its groups. Every method is one thing that happens."""

    GROUPS: ClassVar[tuple[str, ...]] = GROUPS
    BEGINS: ClassVar[dict[str, ConsumeFromWhere]] = {}  # CONSUME_FROM_FIRST_OFFSET else
    PADDING: ClassVar[dict[str, str]] = {}  # properties of every message

    def __init__(
        self,
        seed: int,
        flush: FlushDiskType = FlushDiskType.SYNC_FLUSH,
        model: type[GroupModel] = GroupModel,
    ) -> None:
        self.broker = CuttableBroker(seed, flush)
        self.clock = self.broker.clock
        self.model = model(self.GROUPS)
        self.members: list[Member] = []
        self.tasks = ClientTasks()
        self._violations: list[InvariantError] = []
        self._held: set[bytes] = set()
        self._release = asyncio.Event()
        self._numbers = 0
        self._bodies = 0

    async def open(self) -> None:
        self.tasks.install()
        await self.broker.start()
        self.producer = Producer("senders", self.broker.url, client_config=ClientConfig(instance_name="producer"))
        self.admin = Admin(self.broker.url, client_config=ClientConfig(instance_name="admin"))
        await self.producer.start()
        await self.admin.start()
        await self.admin.update_topic(TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES)

    # ------------------------------------------------------------------------------------------------ messages

    async def send(self, queue_id: int, count: int, failures: int = 0, *, held: bool = False) -> None:
        """So many messages into a queue; each fails in each group so often, or hangs until `release`."""
        for _ in range(count):
            body = self.new_body()
            if held and not any(member.is_cut for member in self.members):
                self._held.add(body)
                self._release.clear()
            self.model.to_send(body, failures, self.clock.monotonic())
            queue = MessageQueue(TOPIC, BrokerConfig().broker_name, queue_id)
            try:
                result = await self.until_done(
                    self.producer.send(Message(TOPIC, body, properties=self.PADDING), queue=queue)
                )
            except MQClientError:
                continue  # whether it is stored is seen by who gets it
            self.model.sent(body, Place(queue_id, result.queue_offset))

    def new_body(self) -> bytes:
        """Of a message that is different from all others."""
        self._bodies += 1
        return b"%d" % (self._bodies - 1)

    async def release(self) -> None:
        """What hangs goes on."""
        self._held.clear()
        self._release.set()
        await self.clock.advance(0.0)

    async def listen(self, member: Member, messages: list[MessageExt]) -> bool:
        """What every listener does: note, perhaps hang, perhaps fail."""
        (message,) = messages
        body, queue = message.body, message.message_queue
        place = Place(queue.queue_id, message.queue_offset) if queue.topic == TOPIC else None
        try:
            running = self.model.begun(member.group, member.name, body, place)
        except InvariantError as error:  # the client takes it for a failure of the listener
            self._violations.append(error)
            raise
        try:
            if body in self._held:
                await self._release.wait()
        except asyncio.CancelledError:
            self.model.broken_off(member.group, running)
            raise
        return self.model.ended(member.group, running, body, place)

    # ------------------------------------------------------------------------------------------------- members

    async def join(self, group: str, count: int = 1, gap_s: float = 0.0) -> None:
        """So many new members, each `gap_s` seconds after the one before, as long as there is room."""
        starts = []
        for _ in range(min(count, MEMBERS_MAX - len(self.of(group)))):
            self._numbers += 1
            member = Member(self, group, f"{group}-{self._numbers}")
            self.members.append(member)
            self._disturbed(group)
            starts.append(member.run(member.consumer.start()))
            await self.clock.advance(gap_s)
        for start in starts:
            await self.until_done(start)

    async def leave(self, number: int) -> None:
        """Orderly, as far as its listeners end."""
        if self.members:
            member = self.members.pop(number % len(self.members))
            self._disturbed(member.group)
            await self.until_done(member.run(member.consumer.shutdown(timeout_s=2.0)))
            member.die()  # what a cut network has left
            await self.clock.advance(0.0)

    async def crash(self, number: int) -> None:
        if self.members:
            member = self.members.pop(number % len(self.members))
            self._disturbed(member.group)
            member.die()
            await self.clock.advance(0.0)

    async def cut(self, number: int) -> None:
        """The member's network is gone, until `mend`. A listener that hangs would outlive its lock, rightly."""
        if self.members:
            await self.release()
            member = self.members[number % len(self.members)]
            member.is_cut = True
            self._disturbed(member.group)
            self.broker.cut(member.name)
            await self.clock.advance(0.0)

    async def mend(self) -> None:
        self._disturbed(*{member.group for member in self.members if member.is_cut})
        self.broker.mend()
        for member in self.members:
            member.is_cut = False
        await self.clock.advance(0.0)

    @property
    def queue_ids(self) -> range:
        """Of the queues that can be read."""
        return range(QUEUES)

    def of(self, group: str) -> list[Member]:
        return [member for member in self.members if member.group == group]

    # ------------------------------------------------------------------------------------- broker and operator

    async def break_connections(self) -> None:
        self._disturbed(*self.GROUPS)
        self.broker.break_connections()
        await self.clock.advance(0.0)

    async def restart_broker(self, *, power: bool) -> None:
        """It dies with its process or with its machine, and is there again at once."""
        self._disturbed(*self.GROUPS)
        await (self.broker.lose_power() if power else self.broker.kill())
        self.model.broker_died()
        await self.broker.start()
        await self.started_again(power=power)
        await self.clock.advance(0.0)
        self.look()

    async def started_again(self, *, power: bool) -> None:
        """The broker answers, and nothing has happened to it yet."""

    async def reset(self, group: str, queue_id: int, share: float) -> None:
        """To a place between the first message and the end, while every member of the group can hear of it."""
        if any(member.is_cut for member in self.of(group)):
            return
        members = self.broker.broker.sessions.members
        while len(members.consumer_ids(group)) < len(self.of(group)):  # some are on their way back
            await self.clock.advance(0.1)
        begin, end = self.broker.broker.store.queue_bounds(TOPIC, queue_id)
        offset = begin + round(share * (end - begin))
        self._disturbed(group)
        self.model.reset(group, queue_id, offset)
        request = admin_pb.ResetConsumerOffsetRequest(group=group, topic=TOPIC)
        request.offsets.add(topic=TOPIC, queue_id=queue_id, offset=offset)
        path = "/hourglass.mq.v1.AdminService/ResetConsumerOffset"
        answer = await self.until_done(self.broker.call(path, request, None))
        assert not answer.code, answer.remark

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        self.look(seconds)

    # --------------------------------------------------------------------------------------------------- looks

    def look(self, seconds: float = 0.0) -> None:
        """Compare what the broker has with what may be finished; after `seconds` without an event it has all of it."""
        if self._violations:
            raise self._violations[0]
        for group in self.GROUPS:
            for queue_id in self.queue_ids:
                progress = self.broker.broker.consumer_offsets.progress(group, TOPIC, queue_id)
                if progress is not None:
                    self.model.stored(group, queue_id, progress.version, progress.offset, progress.ranges, seconds)

    async def finish(self) -> None:
        """All faults are over: in the end everything is consumed by both groups, and every queue has one owner."""
        await self.release()
        await self.mend()
        for group in self.GROUPS:
            if not self.of(group):
                await self.join(group)
        waited_s = 0.0
        while not self._is_settled():
            assert waited_s < SETTLED_S_MAX, f"not settled after {waited_s:.0f} s: {self._unsettled()}"
            await self.advance(5.0)
            waited_s += 5.0
        self.model.check_end()

    async def close(self) -> None:
        for member in self.members:
            member.die()
        for task in (self.producer.shutdown(timeout_s=1.0), self.admin.shutdown(timeout_s=1.0)):
            await self.until_done(task)
        await self.broker.kill()
        self.tasks.uninstall()

    async def until_done(self, work: Awaitable[Any]) -> Any:
        """What the work returns or raises, with time passing meanwhile."""
        task = asyncio.ensure_future(work)
        await self.clock.advance(0.0)
        while not task.done():
            await self.clock.advance(0.05)
        return task.result()

    def _disturbed(self, *groups: str) -> None:
        for group in groups:
            self.model.disturbed(group, len(self.of(group)), self.clock.monotonic())

    def _unsettled(self) -> list[str]:
        found = self.model.unconsumed()
        for group in self.GROUPS:
            owners = [sorted(member.queues) for member in self.of(group)]
            if sorted(queue for queues in owners for queue in queues) != [*self.queue_ids]:
                found.append(f"the queues of {group} are owned so: {owners}")
            for queue_id in self.queue_ids:
                _, end = self.broker.broker.store.queue_bounds(TOPIC, queue_id)
                progress = self.broker.broker.consumer_offsets.progress(group, TOPIC, queue_id)
                if progress is None or progress.offset != end:
                    found.append(f"{group} is at {progress} of {end} in queue {queue_id}")
        return found

    def _is_settled(self) -> bool:
        return not self._unsettled()
