"""`memory://name`: the broker inside a test, on a simulated disk and a clock that the test moves.

    async with EmbeddedBroker("shop") as broker:
        async with Producer("writers", broker.url) as producer:
            await producer.send(Message("orders", b"close me", delay_level=16))
            await broker.clock.advance(30 * 60)
            await broker.idle()  # what listeners began has ended

It is the production broker and the production client; only disk, clock and wire are simulated, and no real timer runs.
`SyncEmbeddedBroker` is the same for mqclient.sync.
"""

from mq_broker.embedded.embedded_broker import EmbeddedBroker
from mq_broker.embedded.transport import SyncEmbeddedBroker, SyncSimClock, open_transport

__all__ = ["EmbeddedBroker", "SyncEmbeddedBroker", "SyncSimClock", "open_transport"]
