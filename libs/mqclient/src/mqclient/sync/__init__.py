"""mqclient without `await`: for scripts and threads, on one event loop in the background.

    with SyncProducer("shop", "mq://127.0.0.1:9876") as producer:
        producer.send(Message("orders", b"...", tag="created", keys="order-17"))

Each class has the methods of the asyncio class that does its work; any number of threads may share one object. In a
thread that runs an event loop they raise IllegalStateError: there is mqclient itself. For `memory://` the broker is a
`mq_broker.embedded.SyncEmbeddedBroker`, whose clock a plain function moves.

The first face that is started starts the thread of the event loop, and the last one that is shut down ends it. Faces
that are still running are shut down at the interpreter's exit. A process that is forked has no part in the faces of its
parent: they raise IllegalStateError there, and it makes its own. gRPC does not survive a fork once it was used, so fork
before the first face is started, or start processes by the method "spawn".
"""

from mqclient.sync.clients import (
    SyncAdmin,
    SyncProducer,
    SyncPullConsumer,
    SyncPushConsumer,
    SyncTransactionListener,
    SyncTransactionProducer,
)

__all__ = [
    "SyncAdmin",
    "SyncProducer",
    "SyncPullConsumer",
    "SyncPushConsumer",
    "SyncTransactionListener",
    "SyncTransactionProducer",
]
