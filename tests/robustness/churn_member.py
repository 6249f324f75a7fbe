"""A process that joins a group and leaves it, again and again, until its standard input ends.

Every message that it has consumed stands in its file before the listener says so: a line with the body. So does every
join.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

from mqclient import ClientConfig, ConsumeFromWhere, ConsumerConfig, ConsumeStatus, MessageExt, PushConsumer
from osenv import SeededRng

STAY_MS, AWAY_MS = (3_000, 9_000), (200, 1_200)


async def visit(url: str, topic: str, group: str, seed: int, file: Path) -> None:
    """Come and go. Ends when the parent closes our standard input, or has died."""
    rng = SeededRng(seed)
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin, over.set)
    with file.open("ab", buffering=0) as out:

        async def listen(messages: list[MessageExt]) -> ConsumeStatus:
            out.write(b"".join(message.body + b"\n" for message in messages))
            return ConsumeStatus.CONSUME_SUCCESS

        while not over.is_set():
            consumer = PushConsumer(
                group,
                url,
                client_config=ClientConfig(instance_name=f"churn-{seed}"),
                consumer_config=ConsumerConfig(consume_message_batch_max_size=16),
                consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            )
            consumer.subscribe(topic)
            consumer.register_message_listener(listen)
            async with consumer:
                out.write(b"joined\n")
                await pause(over, rng.randrange(*STAY_MS))
            await pause(over, rng.randrange(*AWAY_MS))


async def pause(over: asyncio.Event, milliseconds: int) -> None:
    """So long, or until it is over."""
    try:
        async with asyncio.timeout(milliseconds / 1_000):
            await over.wait()
    except TimeoutError:
        return


if __name__ == "__main__":
    url, topic, group, seed, file = sys.argv[1:]
    uvloop.run(visit(url, topic, group, int(seed), Path(file)))
