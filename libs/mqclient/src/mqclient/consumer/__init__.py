"""Consuming. Applications use `push_consumer` and `pull_consumer`, and implement what `listener` has.

A push consumer's parts, put together by its `engine`: `rebalance` says which queues are its own, `assignment` locks and
pulls them, `consume_service` holds what was pulled and `consuming` takes it to the listener. `pulling` asks brokers for
messages; `offsets` (at the brokers) and `broadcast_offsets` (in a file) say how far a group has come.
"""
