"""A process that consumes a topic until SIGTERM, and writes down each message before it says that it has consumed it.

`python netns_consumer.py URL TOPIC GROUP FILE`
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
import zlib
from pathlib import Path

import uvloop
from netns_history import Seen, to_line

from mqclient import ClientConfig, ConsumeFromWhere, ConsumerConfig, ConsumeStatus, MessageExt, PushConsumer

ROUTE_INTERVAL_S = OFFSET_INTERVAL_S = 0.5
BATCH = 16
TEXT_CHARACTERS = 20


def seen(message: MessageExt) -> Seen:
    """What is kept of a message."""
    body = message.body
    return Seen(
        at=time.monotonic(),
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        log_offset=message.log_offset,
        size=len(body),
        crc32=zlib.crc32(body),
        text=body[:TEXT_CHARACTERS].decode("ascii", errors="replace"),
    )


async def consume(url: str, topic: str, group: str, file: Path) -> None:
    """Until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    config = ClientConfig(
        instance_name="auditor",
        poll_name_server_interval_s=ROUTE_INTERVAL_S,
        persist_consumer_offset_first_delay_s=OFFSET_INTERVAL_S,
        persist_consumer_offset_interval_s=OFFSET_INTERVAL_S,
    )
    with file.open("ab", buffering=0) as out:

        async def listen(messages: list[MessageExt]) -> ConsumeStatus:
            out.write(b"".join(to_line(seen(message)) for message in messages))
            return ConsumeStatus.CONSUME_SUCCESS

        consumer = PushConsumer(
            group,
            url,
            client_config=config,
            consumer_config=ConsumerConfig(consume_message_batch_max_size=BATCH),
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        consumer.subscribe(topic)
        consumer.register_message_listener(listen)
        async with consumer:
            await stop.wait()


if __name__ == "__main__":
    url, topic, group, file = sys.argv[1:]
    uvloop.run(consume(url, topic, group, Path(file)))
