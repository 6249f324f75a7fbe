"""A cluster in memory for tests of the client: it can be told to fail, to hold its answers, and to break streams.

    cluster = FakeCluster("shop")
    broker = cluster.add_broker("broker-a")
    async with Producer("group", cluster.url) as producer: ...

The clock is a SimClock: nothing waits for real. A broker with a real store in memory is `memory://`, not this.
"""

from mqclient.testing.fake_broker import FakeBroker, FrameFault
from mqclient.testing.fake_channel import FakeChannel, FakeStream
from mqclient.testing.fake_cluster import FakeCluster, FakeTransport, open_transport
from mqclient.testing.fake_state import FakeTransactions
from mqclient.testing.recording import RecordingListener, RecordingTransactionListener, consumer_of, made_consumer

__all__ = [
    "FakeBroker",
    "FakeChannel",
    "FakeCluster",
    "FakeStream",
    "FakeTransactions",
    "FakeTransport",
    "FrameFault",
    "RecordingListener",
    "RecordingTransactionListener",
    "consumer_of",
    "made_consumer",
    "open_transport",
]
