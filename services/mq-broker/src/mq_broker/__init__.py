"""The broker of the Hourglass queue: receives, stores and delivers messages.

Layers, each of which knows only those before it: `core` (pure decisions), `store` (files), `schedule` (messages that
wait), `replication` (masters and replicas), `processor` (what each request does), `rpc` (gRPC), and at the root
`config`, `telemetry`, `app` and `__main__`. `embedded` is the same broker without a network.
"""

__version__ = "0.1.0"
