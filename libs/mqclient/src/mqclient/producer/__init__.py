"""Sending, in three layers (MISSION P20); each knows those below it only, and tests/architecture holds that.

1. Business: what an application calls. `producer`, `transaction_producer` and what belongs to them: `send_callback`,
   `transaction_checks`; and `numbered_producer`, which comes back under its numbers.
2. Message handling: checking, encoding, compressing, choosing a queue, trying again. `sender` and what it is made of:
   `outgoing`, `message_encoder`, `batch_splitter`, `body_compressor`, `queue_choice`, `selectors`, `latency_fault`,
   `retry`, `hooks`, `try_watch`, `in_flight`.
3. Transport: one stream to each broker name. `produce_streams`, `produce_stream`, `frames`, `waiting`, `resending`,
   `reopening`, `numbering`;
   below it `mqclient.transport`.

Values that all layers speak of stand beside them: `producer_config`, `send_result`, `transaction_listener`.
"""
