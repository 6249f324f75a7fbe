"""The connections between this client and its brokers, on top of `mqclient.transport`.

- `frames`: messages in batches, batches in frames, and which of those that wait go next.
- `produce_stream`: the streams that frames leave by, one for each broker name.
- `poll_stream`: the streams of long polls.
- `session`: heartbeats, and what brokers ask of the client.
- `broker_connections`: the connections of one client instance to all its brokers, and unary calls to them.

Producers and consumers use it; it imports neither.
"""
