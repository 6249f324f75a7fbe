"""Consumers in full, the same on `memory://` and on real processes (mechanisms C1-C5, C9, C21, C25, M5, O1, O2)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest
from contract_world import Visit, topic_queues

from mqclient import (
    Admin,
    BrokerRejectedError,
    ClientConfig,
    ConsumeOrderlyStatus,
    ConsumeStatus,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    SelectMessageQueueByHash,
)
from mqclient.testing import RecordingTransactionListener

pytestmark = pytest.mark.asyncio(loop_scope="module")

SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


class Ledger:
    """An orderly listener of one member: notes (member, order, step); what is in `failing` fails once each."""

    def __init__(self, name: str, notes: list[tuple[str, bytes]], failing: set[bytes]) -> None:
        self._name, self._notes, self._failing = name, notes, failing

    async def __call__(self, messages: list[MessageExt]) -> ConsumeOrderlyStatus:
        for message in messages:
            if message.body in self._failing:
                self._failing.discard(message.body)
                return SUSPEND
            self._notes.append((self._name, message.body))
        return ConsumeOrderlyStatus.SUCCESS


@pytest.mark.mechanism("O2")
async def test_each_order_keeps_its_steps_while_members_come_and_go(visit: Visit) -> None:
    """Mechanism O2: a key's messages stand in one queue and are consumed in their order, whichever member has the
    queue."""
    await visit.add_topic(queues=4)
    producer = await visit.producer()
    notes: list[tuple[str, bytes]] = []
    selector = SelectMessageQueueByHash()
    failing = {b"3:2", b"5:0", b"7:9"}
    orders, steps = 10, 12

    async def send(step: int) -> None:
        for order in range(orders):
            message = Message(visit.topic, b"%d:%d" % (order, step))
            await producer.send(message, selector=selector, selector_argument=f"order-{order}")

    members = []
    for step in range(steps):
        await visit.finish(send(step))
        if step in {2, 5}:
            member = visit.made_consumer(suspend_current_queue_time_s=0.2)
            member.register_message_listener_orderly(Ledger(f"m{step}", notes, failing))
            await visit.join(member)
            members.append(member)
    await visit.world.until(lambda: len(notes) >= orders * steps // 2, "half of it")
    await visit.finish(members[0].shutdown())
    await visit.world.until(lambda: len({body for _, body in notes}) == orders * steps, "all steps")
    by_order: dict[bytes, list[int]] = defaultdict(list)
    for _, body in notes:
        key, _, number = body.partition(b":")
        by_order[key].append(int(number))
    assert all(taken == [*range(steps)] for taken in by_order.values()), by_order
    assert failing == set()


@pytest.mark.mechanism("O1")
async def test_one_queue_is_one_order_for_all_consumers(visit: Visit) -> None:
    """Mechanism O1: global order is a topic with one queue; a second member of the group waits behind the first."""
    await visit.add_topic(queues=1)
    producer = await visit.producer()
    notes: list[tuple[str, bytes]] = []
    members = []
    for name in ("a", "b"):
        member = visit.made_consumer()
        member.register_message_listener_orderly(Ledger(name, notes, set()))
        if name == "a":
            await visit.join(member)
        else:
            await visit.finish(visit._stack.enter_async_context(member))
        members.append(member)
    bodies = [b"%d" % number for number in range(30)]
    for body in bodies:
        await producer.send(Message(visit.topic, body))
    await visit.world.until(lambda: len(notes) == 30, "all messages")
    assert [body for _, body in notes] == bodies
    assert sum(len(topic_queues(member, visit.topic)) for member in members) == 1


@pytest.mark.mechanism("C21")
async def test_after_a_crash_only_the_unfinished_message_comes_again(visit: Visit) -> None:
    """Mechanism C21: the first of a hundred hangs, the others are finished; then everything dies, the broker too."""
    await visit.add_topic(queues=1)
    producer, heir = await visit.producer(), visit.inbox()
    begun: list[bytes] = []
    for number in range(100):
        await producer.send(Message(visit.topic, b"%d" % number))
    hang = asyncio.Event()

    async def hanging(messages: list[MessageExt]) -> ConsumeStatus:
        begun.extend(message.body for message in messages)
        if messages[0].body == b"0":
            await hang.wait()
        return ConsumeStatus.CONSUME_SUCCESS

    victim = await visit.consumer(hanging, consume_concurrency=2)  # type: ignore[arg-type]
    await visit.world.until(lambda: len(begun) == 100, "all but the first are consumed")
    async with Admin(visit.world.url) as admin:

        async def finished_beyond() -> int:
            queues = (await admin.consume_stats(visit.group, visit.topic)).queues
            return sum(queue.finished_beyond for queue in queues)

        while await visit.finish(finished_beyond()) < 99:
            await visit.finish(visit.world.clock.sleep(0.05))
        await visit.finish(visit.world.clock.sleep(0.5))  # on disk a moment later
        await visit.world.kill()
        await visit.finish(victim.shutdown(timeout_s=0.1))  # it cannot say what it has done
        await visit.world.start()
        await visit.consumer(heir)
        await visit.world.until(lambda: heir.bodies, "what is unfinished")
        await producer.send(Message(visit.topic, b"afterwards"))
        await visit.world.until(lambda: heir.bodies[-1] == b"afterwards", "what comes afterwards")
        assert heir.bodies == [b"0", b"afterwards"]


@pytest.mark.mechanism("C1", "C3")
async def test_every_group_gets_every_message_and_each_member_a_share(visit: Visit) -> None:
    """Mechanisms C1, C3: with a group each, all consumers get all messages; inside a group members share."""
    await visit.add_topic(queues=4)
    producer = await visit.producer()
    inboxes = {name: visit.inbox() for name in ("a1", "a2", "b1")}
    members = [await visit.consumer(inbox, group=f"{visit.group}-{name[0]}") for name, inbox in inboxes.items()]
    await visit.world.until(lambda: [len(topic_queues(one, visit.topic)) for one in members] == [2, 2, 4], "the shares")
    bodies = [b"%d" % number for number in range(40)]
    for body in bodies:
        await producer.send(Message(visit.topic, body))

    def of_a() -> list[bytes]:
        return sorted(inboxes["a1"].bodies + inboxes["a2"].bodies)

    await visit.world.until(lambda: len(of_a()) >= 40 and len(inboxes["b1"].bodies) >= 40, "all messages twice")
    assert of_a() == sorted(inboxes["b1"].bodies) == sorted(bodies)
    assert min(len(inboxes[name].bodies) for name in ("a1", "a2")) > 0


@pytest.mark.mechanism("C2")
async def test_broadcasting_reaches_every_member(visit: Visit, tmp_path: Path) -> None:
    """Mechanism C2."""
    await visit.add_topic(queues=2)
    producer, inboxes = await visit.producer(), [visit.inbox(), visit.inbox()]
    for number, inbox in enumerate(inboxes):
        await visit.consumer(
            inbox,
            message_model=MessageModel.BROADCASTING,
            local_offset_store_dir=tmp_path,
            client_config=ClientConfig(instance_name=f"{visit.group}-b{number}", poll_name_server_interval_s=0.2),
        )
    for number in range(10):
        await producer.send(Message(visit.topic, b"%d" % number))
    await visit.world.until(lambda: all(len(inbox.bodies) == 10 for inbox in inboxes), "all messages at both")


@pytest.mark.mechanism("C4")
async def test_member_that_subscribes_differently_is_rejected_and_told_why(visit: Visit) -> None:
    """Mechanism C4."""
    await visit.add_topic()
    await visit.consumer(visit.inbox(), "created")
    other = visit.made_consumer("paid || created")
    other.register_message_listener(visit.inbox())
    with pytest.raises(BrokerRejectedError, match=r"(?s)created.*paid|paid.*created") as rejected:
        await visit.finish(other.start())
    assert visit.group in str(rejected.value)
    assert visit.topic in str(rejected.value)
    alike = visit.made_consumer("created")
    alike.register_message_listener(visit.inbox())
    await visit.join(alike)


@pytest.mark.mechanism("C25")
async def test_backlog_is_consumed_by_a_late_member(visit: Visit) -> None:
    """Mechanism C25: messages wait as long as they have to; who comes late gets all of them, in order."""
    await visit.add_topic(queues=1)
    producer, inbox = await visit.producer(), visit.inbox()
    bodies = [b"%d:" % number + bytes(2_000) for number in range(600)]
    await visit.finish(_send_all(producer.send, visit.topic, bodies))
    await visit.consumer(inbox)
    await visit.world.until(lambda: len(inbox.bodies) == 600, "the whole backlog", 60.0)
    assert inbox.bodies == bodies


@pytest.mark.mechanism("M5")
async def test_five_kinds_of_messages_reach_one_consumer(visit: Visit) -> None:
    """Mechanism M5: normal, partition-ordered, global-ordered, delayed, transactional."""
    await visit.add_topic(queues=1)
    inbox = visit.inbox()
    await visit.consumer(inbox)
    producer = await visit.producer()
    transactional = await visit.transaction_producer(RecordingTransactionListener(LocalTransactionState.COMMIT_MESSAGE))
    queue = MessageQueue(visit.topic, "broker-a", 0)
    await producer.send(Message(visit.topic, b"normal"))
    await producer.send(Message(visit.topic, b"partition"), selector=SelectMessageQueueByHash(), selector_argument="k")
    await producer.send(Message(visit.topic, b"global"), queue=queue)
    await producer.send(Message(visit.topic, b"delayed", delay_level=1))
    await visit.finish(transactional.send_message_in_transaction(Message(visit.topic, b"transaction")))
    await visit.world.until(lambda: len(inbox.bodies) == 5, "all five")
    assert inbox.bodies == [b"normal", b"partition", b"global", b"transaction", b"delayed"]


async def _send_all(send: object, topic: str, bodies: list[bytes]) -> None:
    await asyncio.gather(*(send(Message(topic, body)) for body in bodies))  # type: ignore[operator]
