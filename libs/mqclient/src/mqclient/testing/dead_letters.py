"""Dead letters, made as a consumer makes them that gives a message up at once, and looked at."""

from __future__ import annotations

from collections.abc import Sequence

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.admin import Admin, DeadLetter, DeadLetterFilter, DeadLetterState
from mqclient.errors import require_success
from mqclient.message import Message, SendResult
from mqclient.producer.producer import Producer
from mqclient.transport import open_transport
from mqclient.transport.methods import CONSUMER_SEND_BACK

DEAD_AT_ONCE = -1  # as a delay level
ANSWER_TIMEOUT_S = 10.0
IN_ANY_STATE = DeadLetterFilter(states=frozenset(DeadLetterState))


async def send_dead_letters(url: str, group: str, messages: Sequence[Message]) -> list[SendResult]:
    """Send the messages, and give each back in the name of `group`, which ends it. Returns where they were sent."""
    async with Producer("writers", url) as producer:
        results = [await producer.send(message) for message in messages]
    transport = open_transport(url)
    for result in results:
        channel = transport.open_channel(result.broker_address)
        request = broker_pb.ConsumerSendBackRequest(group=group, log_offset=result.log_offset, delay_level=DEAD_AT_ONCE)
        answer = await channel.unary(CONSUMER_SEND_BACK, request, ANSWER_TIMEOUT_S)
        require_success(answer.code, answer.remark, result.broker_address)
        await channel.close()
    return results


async def letters_of(admin: Admin, group: str, wanted: DeadLetterFilter = IN_ANY_STATE) -> list[DeadLetter]:
    """All at once."""
    return [letter async for letter in admin.dead_letters(group, wanted)]


async def open_bodies(admin: Admin, group: str) -> list[bytes]:
    """The bodies of those with which nobody has done anything."""
    return [letter.message.body for letter in await letters_of(admin, group, DeadLetterFilter())]


async def states_of(admin: Admin, group: str) -> dict[bytes, DeadLetterState]:
    """The state of each, by its body."""
    return {letter.message.body: letter.state for letter in await letters_of(admin, group)}


async def stored_bodies(admin: Admin, topic: str) -> list[bytes]:
    """What the topic holds, queue by queue; nothing when it does not exist."""
    if topic not in await admin.topic_list():
        return []
    queues = (await admin.topic_route(topic)).subscribe_queues()
    return [message.body for queue in queues async for message in admin.read_queue(queue)]
