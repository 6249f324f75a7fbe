"""What the gateway decides and reports later is in the trace of the request that asked for it."""

from __future__ import annotations

import telemetry
from sandbox_gateway.gateway import Behaviour
from sandbox_gateway.testing import RecordingReceiver, running_gateway
from servicekit.testing.databases import NewDatabaseUrl
from telemetry.testing.recorder import Recorder

ORDER = 32 * "a"
HEADERS = {"traceparent": f"00-{ORDER}-{16 * 'b'}-01"}


class TracedReceiver(RecordingReceiver):
    """Notes the trace in which it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.traces: list[str | None] = []

    async def deliver(self, body: bytes) -> None:
        self.traces.append(telemetry.current_trace_id())
        await super().deliver(body)


async def test_a_decision_and_its_webhook_are_in_the_trace_of_the_request(new_database_url: NewDatabaseUrl) -> None:
    receiver = TracedReceiver()
    with Recorder() as recorder:
        async with running_gateway(
            new_database_url("gateway"), behaviour=Behaviour(delay_ms=50), receiver=receiver
        ) as gateway:
            gateway.http.headers.update(HEADERS)
            await gateway.charge("p1", amount_minor=100)
            await gateway.pass_time(1)
            await gateway.refund("r1", "p1", amount_minor=60)
            await gateway.pass_time(1)
        names = [span.name for span in recorder.spans() if span.trace_id == ORDER]
        strangers = [span.name for span in recorder.spans() if span.trace_id != ORDER]
    assert receiver.traces == [ORDER, ORDER]
    for name in ("POST /v1/charges", "decide charge", "POST /v1/refunds", "carry out refund"):
        assert names.count(name) == 1, names
    assert names.count("send webhook") == 2
    assert strangers == []
