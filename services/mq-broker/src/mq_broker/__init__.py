"""The broker of the Hourglass queue: messages in, messages kept, messages out.

Layers, each of which knows only those before it: `core` (pure decisions), `store` (files), `schedule` (delay levels),
`processor` (what each request does), `rpc` (gRPC), and at the root `config`, `app` and `__main__`.
"""

__version__ = "0.1.0"
