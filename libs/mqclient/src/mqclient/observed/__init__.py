"""Spans and metrics of the client, after OpenTelemetry's conventions for messaging; only entered while one of them is
on.

| span | kind | parent |
|---|---|---|
| `send {topic}`: one for each call of send, send_batch, send_async, send_oneway; also of a half | PRODUCER | current |
| `transaction {topic}`: the local transaction | INTERNAL | the half's send |
| `commit {topic}`, `rollback {topic}`: the broker is told | CLIENT | the half's send, or the check |
| `check {topic}`: a broker asks how a transaction ended | INTERNAL | what the half carries |
| `process {topic}`: one call of a listener | CONSUMER | what its message carries; of several messages the current one |
| `send back {topic}`, `dead letter {topic}`: what was not consumed | CLIENT | what the message carries |
| `receive {topic}`: a pull that found something | CLIENT | the current one |
| `recall {topic}`, `reschedule {topic}` | CLIENT | the current one |

A message carries the context of its `send` span, also when that is not sampled, so that all agree. A message that its
application has given a `traceparent` keeps it, and the `send` span is linked with that; a message whose properties have
no room left travels without. A `process` span is linked with each of its messages' contexts. The span is current while
the listener, the local transaction or the check runs, in its thread as well.
"""
