"""An embedded broker that can be stopped in every gap of the transaction protocol, from the outside.

Nothing of the production code is changed: requests and answers stand still on their way, the disk stands still between
write and sync, and the broker's own steps are watched through the two methods by which they reach its store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, ContextVar
from typing import Any, ParamSpec, TypeVar

from client_tasks import CLIENT, context_of
from transaction_gaps import Gap, Gaps

from hourglass.mq.v1 import broker_service_pb2 as pb
from mq_broker.core.batches import Batch
from mq_broker.core.transactions import TransactionOptions
from mq_broker.embedded import EmbeddedBroker
from mq_broker.embedded.embedded_broker import BrokenStream, MemoryStream
from mq_broker.store.durability import Copies
from mq_broker.store.message_store import FlushDiskType, PutResult
from mqclient.errors import BrokerUnreachableError
from mqclient.transport.methods import END_TRANSACTION, PRODUCE
from mqproto.names import OP_HALF_TOPIC
from osenv import SimDisk

P = ParamSpec("P")
T = TypeVar("T")

COMMIT_LOG_FILE_BYTES = 64 * 1024
DEAD = "this client is dead"
SERVED: ContextVar[str] = ContextVar("served", default="")  # whose request the broker is at
WRITTEN: ContextVar[Gap] = ContextVar("written", default=Gap.HALF_WRITTEN)  # the gap between its write and its sync


class GapDisk(SimDisk):
    """A simulated disk whose syncs can be held up."""

    def __init__(self) -> None:
        super().__init__()
        self._gate: _Gate | None = None

    def hold(self) -> None:
        """From now on what would block waits, until `go_on` or the end of the process."""
        self._gate = self._gate or _Gate()

    def go_on(self, *, process_died: bool = False) -> None:
        if self._gate is not None:
            self._gate.process_died = process_died
            self._gate.opened.set()
            self._gate = None

    async def offload(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        gate = self._gate
        if gate is not None:
            await gate.opened.wait()
            if gate.process_died:
                raise OSError("the process that wanted to sync is dead")
        return call(*args, **kwargs)


class _Gate:
    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.process_died = False


class GapBroker(EmbeddedBroker):
    """`gaps` says where to stop. Clients have names (CLIENT), and can lose their connections each for itself."""

    def __init__(self, gaps: Gaps, *, flush: FlushDiskType, transactions: TransactionOptions, seed: int) -> None:
        self._gap_disk = GapDisk()
        super().__init__(
            "transactions",
            disk=self._gap_disk,
            flush_disk_type=flush,
            transactions=transactions,
            commit_log_file_bytes=COMMIT_LOG_FILE_BYTES,
            seed=seed,
        )
        self._gaps = gaps
        self._dead: set[str] = set()
        self._streams: dict[str, set[_GapStream]] = {}

    async def start(self) -> None:
        await super().start()
        store = self.broker.store
        put, wait_stored = store.put, store.wait_stored

        def watched_put(
            batches: Sequence[Batch], store_ms: int, *, inward: bool = False, despite_full: bool = False
        ) -> list[PutResult]:
            if self._stops_before_sync(batches):
                self._gap_disk.hold()
            return put(batches, store_ms, inward=inward, despite_full=despite_full)

        async def watched_wait_stored(end: int) -> Copies:
            await self._gaps.reach(WRITTEN.get(), SERVED.get())
            return await wait_stored(end)

        store.put, store.wait_stored = watched_put, watched_wait_stored  # type: ignore[method-assign]

    def go_on(self) -> None:
        """What was held up between write and sync is synced."""
        self._gap_disk.go_on()

    def client_died(self, client: str, *, silently: bool) -> None:
        """Its connections break; silently: the broker does not hear of it. Requests that have left it may be on their
        way."""
        self._dead.add(client)
        if not silently:
            for stream in list(self._streams.get(client, ())):
                stream.break_off()

    def call(self, path: str, request: Any, context: Any) -> Awaitable[Any]:
        client = CLIENT.get()
        if self.is_dead(client):
            raise BrokerUnreachableError(DEAD)
        serving = _serving(client)
        if path != END_TRANSACTION.path:
            return serving.run(super().call, path, request, context)
        work = self._end_transaction(client, self._method(path), request, context)
        return self._track(serving.run(asyncio.ensure_future, work))

    def stream(self, path: str) -> Any:
        client = CLIENT.get()
        if self.is_dead(client):
            return BrokenStream(BrokerUnreachableError(DEAD))
        stream = _serving(client).run(super().stream, path)
        if not isinstance(stream, MemoryStream):
            return stream
        watched = (_ProduceStream if path == PRODUCE.path else _GapStream)(self, stream, client, self._gaps)
        mine = self._streams.setdefault(client, set())
        mine.add(watched)
        stream.task.add_done_callback(lambda _: mine.discard(watched))
        return watched

    def is_dead(self, client: str) -> bool:
        return client in self._dead

    async def _end_transaction(
        self,
        client: str,
        method: Callable[[Any, Any], Awaitable[Any]],
        request: pb.EndTransactionRequest,
        context: Any,
    ) -> Any:
        sent, written, stored = (
            (Gap.CHECK_SENT, Gap.CHECK_WRITTEN, Gap.CHECK_STORED)
            if request.from_check
            else (Gap.END_SENT, Gap.END_WRITTEN, Gap.END_STORED)
        )
        WRITTEN.set(written)
        await self._gaps.reach(sent, client)
        response = await method(request, context)
        await self._gaps.reach(stored, client)
        return response

    def _stops_before_sync(self, batches: Sequence[Batch]) -> bool:
        """Whether this is the write of a client's request that is to stop before its sync."""
        wanted = any(batch.prepared or batch.topic == OP_HALF_TOPIC for batch in batches)
        return wanted and bool(SERVED.get()) and self._gaps.is_armed(WRITTEN.get())

    async def _end(self) -> None:
        self._gap_disk.go_on(process_died=True)
        await super()._end()


class _GapStream:
    """A stream whose client can die."""

    def __init__(self, broker: GapBroker, inner: MemoryStream, client: str, gaps: Gaps) -> None:
        self._broker, self._inner, self._client, self._gaps = broker, inner, client, gaps

    async def write(self, request: Any) -> None:
        await self._inner.write(request)

    async def read(self) -> Any:
        return await self._inner.read()

    async def done_writing(self) -> None:
        await self._inner.done_writing()

    def cancel(self) -> None:
        if not self._broker.is_dead(self._client):  # the dead give nothing up
            self._inner.cancel()

    def break_off(self) -> None:
        self._inner.cancel()


class _ProduceStream(_GapStream):
    """Stops before the half message is at the broker, and before its answer is at the client."""

    async def write(self, request: Any) -> None:
        await self._gaps.reach(Gap.BEFORE_HALF, self._client)
        await super().write(request)

    async def read(self) -> Any:
        response = await super().read()
        if response is not None:
            await self._gaps.reach(Gap.HALF_STORED, self._client)
            if self._inner.task.done():
                return await super().read()  # the connection broke before the answer came through
        return response


def _serving(client: str) -> Context:
    """Where the broker's tasks for a request of `client` belong: they outlive it."""
    context = context_of("")
    context.run(SERVED.set, client)
    return context
