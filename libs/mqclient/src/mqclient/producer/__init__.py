"""Sending, in three layers; each knows those below it only, and tests/architecture holds that.

1. Business: what an application calls. `producer` and `transaction_producer`; and `idempotent_producer`, whose messages
   the application numbers, so that it is recognised when it comes back as another process.
2. Message handling: checking, encoding, compressing, choosing a queue, trying again. `prepared` is a message on its
   way, `sender` delivers it, and `attempts` says which failed attempt is followed by another one.
3. Transport: one stream to each broker name, in `mqclient.connection`; below it `mqclient.transport`.
"""
