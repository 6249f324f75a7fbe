"""A broker in this process, reached by `memory://name`: an ASYNC_MASTER that no replica can reach."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import grpc

from hourglass.mq.v1 import common_pb2
from hourglass.mq.v1 import name_service_pb2 as pb
from mq_broker.config import BrokerConfig
from mq_broker.core.delays import DEFAULT_DELAY_LEVELS
from mq_broker.core.replica_state import BrokerIdentity
from mq_broker.core.topics import TopicTable
from mq_broker.core.transactions import TransactionOptions
from mq_broker.processor.broker import Broker
from mq_broker.rpc.admin_service import AdminService
from mq_broker.rpc.broker_service import BrokerService
from mq_broker.rpc.registration import Registration
from mq_broker.store.message_store import FlushDiskType
from mqclient.client_instance import in_flight
from mqclient.errors import (
    BrokerUnreachableError,
    ConnectionLostError,
    IllegalArgumentError,
    IllegalStateError,
    MQClientError,
)
from mqproto.conf import config_pairs
from osenv import Rng, SeededRng, SimClock, SimDisk, until
from osenv.sim_clock import settle

NAME_SERVER_ADDRESS = "127.0.0.1:9876"
STORE_ROOT = "/store"
COMMIT_LOG_FILE_BYTES = 8 * 1024 * 1024
CONSUME_QUEUE_FILE_BYTES = 200_000  # 10,000 entries
INDEX_SLOTS, INDEX_ENTRIES = 4_096, 16_384
REGISTER_PERIOD_S = 30

_running: dict[str, EmbeddedBroker] = {}


class EmbeddedBroker:
    """Start it, or enter it as a context; `url` is what clients take. `clock` and `disk` may be given, and are kept.

    Invariants: at most one embedded broker of a name runs; while it is down, calls are unreachable; a call that runs
    when it dies breaks.
    """

    def __init__(
        self,
        name: str = "broker",
        *,
        clock: SimClock | None = None,
        disk: SimDisk | None = None,
        delay_levels: str = DEFAULT_DELAY_LEVELS,
        flush_disk_type: FlushDiskType = FlushDiskType.SYNC_FLUSH,
        transactions: TransactionOptions | None = None,
        property_filter_enabled: bool = False,
        commit_log_file_bytes: int = COMMIT_LOG_FILE_BYTES,
        seed: int = 0,
    ) -> None:
        self.name = name
        self.url = f"memory://{name}"
        self.clock = clock or SimClock()
        self.disk = disk or SimDisk()
        self.rng: Rng = SeededRng(seed)
        checks = transactions or TransactionOptions()
        self._config = BrokerConfig(
            store_path_root_dir=STORE_ROOT,
            flush_disk_type=flush_disk_type,
            mapped_file_size_commit_log=commit_log_file_bytes,
            mapped_file_size_consume_queue=CONSUME_QUEUE_FILE_BYTES,
            max_hash_slot_num=INDEX_SLOTS,
            max_index_num=INDEX_ENTRIES,
            message_delay_level=delay_levels,
            transaction_check_interval=checks.check_interval_ms,
            transaction_time_out=checks.immunity_ms,
            transaction_check_max=checks.check_times_max,
            enable_property_filter=property_filter_enabled,
        )
        self._broker: Broker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._services: dict[str, Any] = {}
        self._calls: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Open the store, recover, and answer. Raises ValueError when a broker of this name runs already."""
        if _running.setdefault(self.name, self) is not self or self._broker is not None:
            raise ValueError(f"an embedded broker named {self.name!r} runs already")
        try:
            port = self._config.listen_port
            options, store_options = self._config.broker_options(port), self._config.store_options(port)
            broker = Broker(self.disk, self.clock, options, store_options, self.rng)
            await broker.open()
        except BaseException:
            del _running[self.name]
            raise
        self._loop = asyncio.get_running_loop()
        self.clock.wait_for(self._in_flight)
        self._stopping = asyncio.Event()
        registration = Registration(broker.identity, broker.topics, (), self.clock, REGISTER_PERIOD_S)
        self._services = {
            "NameService": OneBrokerNameService(broker.identity, broker.topics),
            "BrokerService": BrokerService(broker, self._stopping),
            "AdminService": AdminService(broker, registration, lambda: config_pairs(self._config)),
        }
        self._broker = broker
        self._running = asyncio.create_task(broker.run(), name=f"embedded broker {self.name}")

    async def stop(self) -> None:
        """Stop cleanly: streams end, and the next start has nothing to recover."""
        broker = self._broker
        if broker is None:
            return
        self._stopping.set()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._end()
        await broker.close()

    def break_connections(self) -> None:
        """Break every call that runs, as a fault of the network would; the broker itself goes on."""
        for task in list(self._calls):
            task.cancel()

    async def kill(self) -> None:
        """Die as by SIGKILL: calls break, and what was written stays on the disk."""
        await self._end()
        self.disk.kill()

    async def lose_power(self) -> None:
        """Die with the machine: of what was not synced, a random part stays on the disk."""
        await self._end()
        self.disk.crash(self.rng)

    async def idle(self, *, within_s: float = 10.0) -> None:
        """Return when its clients have nothing under way; the clock stands still meanwhile.

        That is: every message that was given to a listener is answered, also by a listener in a thread or one that
        waits for a database; no send, transaction end, check or send-back is without its result. Messages that wait for
        their time, for a retry, too, are not under way.

        Raises TimeoutError after `within_s` seconds of real time, naming what goes on: it may wait for this clock.
        """

        async def is_idle() -> bool:
            await settle()
            return not self._in_flight()

        try:
            await until(is_idle, within_s=within_s)
        except TimeoutError:
            raise TimeoutError(
                f"{self.url} is not idle after {within_s:g} s: {'; '.join(self._in_flight())}. What waits for the clock"
                " goes on when the test moves it: clock.advance, clock.until"
            ) from None

    def require_its_loop(self) -> None:
        """Raises IllegalStateError on another event loop than the broker's: calls would wait forever."""
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            raise IllegalStateError(
                f"{self.url} runs on another event loop than this client, which would wait forever. Use both in one:"
                " with FastAPI httpx.AsyncClient(transport=httpx.ASGITransport(app)) inside mq.lifespan(app), because"
                " TestClient has a loop of its own; with pytest asyncio_mode = auto, and no anyio marker"
            )

    def _in_flight(self) -> list[str]:
        return in_flight(self.url)

    @property
    def broker(self) -> Broker:
        """The broker behind the wire, to look at. Raises ValueError while it is down."""
        if self._broker is None:
            raise ValueError(f"the embedded broker {self.name!r} is down")
        return self._broker

    def call(self, path: str, request: Any, context: Any) -> Awaitable[Any]:
        """A unary call as a task that breaks when the broker dies. Raises BrokerUnreachableError."""
        task = self._track(asyncio.ensure_future(self._method(path)(request, context)))
        task.add_done_callback(lambda _: context.end())
        return task

    def stream(self, path: str) -> MemoryStream | BrokenStream:
        """A stream to the method of this path."""
        try:
            stream = MemoryStream(self._method(path), f"embedded {path}")
        except BrokerUnreachableError as error:
            return BrokenStream(error)
        self._track(stream.task)
        return stream

    def _method(self, path: str) -> Servicer:
        self.require_its_loop()
        if self._broker is None:
            raise BrokerUnreachableError(f"the embedded broker {self.name!r} is down")
        service, _, name = path.rpartition("/")
        method: Servicer = getattr(self._services[service.rpartition(".")[2]], name)
        return method

    def _track(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task

    async def _end(self) -> None:
        tasks = [*self._calls, *([self._running] if self._running else [])]
        self._broker = self._running = None
        self.clock.wait_no_longer_for(self._in_flight)
        self._services = {}
        _running.pop(self.name, None)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> EmbeddedBroker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()


def find(name: str) -> EmbeddedBroker:
    """The running embedded broker of this name. Raises IllegalArgumentError."""
    try:
        return _running[name]
    except KeyError:
        known = ", ".join(f"memory://{one}" for one in sorted(_running)) or "none"
        raise IllegalArgumentError(f"no embedded broker {name!r} runs; there is: {known}") from None


class OneBrokerNameService:
    """The route of the one broker there is.

    Answers what clients ask of a name server.
    """

    def __init__(self, identity: BrokerIdentity, topics: TopicTable) -> None:
        self._identity, self._topics = identity, topics

    async def QueryRoute(self, request: pb.QueryRouteRequest, context: Any) -> pb.QueryRouteResponse:
        config = self._topics.get(request.topic)
        if config is None:
            remark = f"no registered broker has registered the topic {request.topic!r}"
            return pb.QueryRouteResponse(code=common_pb2.TOPIC_NOT_EXIST, remark=remark)
        queues = pb.QueueData(
            broker_name=self._identity.broker_name,
            read_queue_count=config.read_queue_count,
            write_queue_count=config.write_queue_count,
            perm=config.perm,
        )
        return pb.QueryRouteResponse(route=pb.TopicRoute(queues=[queues], brokers=[self._broker()]))

    async def ListTopics(self, request: pb.ListTopicsRequest, context: Any) -> pb.ListTopicsResponse:
        return pb.ListTopicsResponse(topics=[config.topic for config in self._topics.all()])

    async def ListClusters(self, request: pb.ListClustersRequest, context: Any) -> pb.ListClustersResponse:
        return pb.ListClustersResponse(brokers=[self._broker()])

    def _broker(self) -> pb.BrokerData:
        identity = self._identity
        return pb.BrokerData(
            cluster_name=identity.cluster_name,
            broker_name=identity.broker_name,
            addresses={identity.broker_id: identity.address},
        )


Servicer = Callable[[Any, Any], Awaitable[Any]]


class AbortedCallError(Exception):
    """The servicer has rejected the call."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details

    def as_client_error(self) -> MQClientError:
        """The error for the client."""
        if self.code is grpc.StatusCode.INVALID_ARGUMENT:
            return IllegalArgumentError(self.details)
        return ConnectionLostError(f"the call was ended: {self.details}")


def broken() -> ConnectionLostError:
    """The error of a call whose server has died."""
    return ConnectionLostError("the connection to the embedded broker broke")


class CallContext:
    """A servicer's view of its caller."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.responses: asyncio.Queue[Any] = asyncio.Queue()
        self._callbacks: list[Callable[[Any], None]] = []

    async def read(self) -> Any:
        """The next request, or EOF."""
        return await self.requests.get()

    async def write(self, response: Any) -> None:
        """Hand a response to the caller."""
        self.responses.put_nowait(response)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call when the call is over."""
        self._callbacks.append(callback)

    def end(self) -> None:
        """The call is over, with or without an answer for its caller."""
        while self._callbacks:
            self._callbacks.pop()(self)

    def peer(self) -> str:
        """The caller: all callers in this process are one."""
        return "memory"

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        """Reject the call."""
        raise AbortedCallError(code, details)


class MemoryStream:
    """Calls without a network: a servicer's method runs as a task, and queues stand for the two directions of a stream.

    A stream to a servicer's method that runs in this process; `mqclient.transport.Stream` with no network.

    Invariants: a reader gets what was written, in order, then the end; a call whose server dies breaks, and never ends
    in order.
    """

    def __init__(self, method: Servicer, name: str) -> None:
        self._context = CallContext()
        self._error: MQClientError | None = None
        self._task = asyncio.create_task(self._serve(method), name=name)

    async def _serve(self, method: Servicer) -> None:
        end: Any = grpc.aio.EOF
        try:
            await method(None, self._context)
        except AbortedCallError as error:
            self._error = end = error.as_client_error()
        except asyncio.CancelledError:
            self._error = end = broken()
            raise
        finally:
            self._context.responses.put_nowait(end)

    @property
    def task(self) -> asyncio.Task[None]:
        """The servicer at work."""
        return self._task

    async def write(self, request: Any) -> None:
        if self._task.done():
            raise self._error or ConnectionLostError("the stream has ended")
        self._context.requests.put_nowait(request)

    async def read(self) -> Any:
        response = await self._context.responses.get()
        if response is grpc.aio.EOF or isinstance(response, MQClientError):
            self._context.responses.put_nowait(response)  # the end stays the end
            if isinstance(response, MQClientError):
                raise response
            return None
        return response

    async def done_writing(self) -> None:
        self._context.requests.put_nowait(grpc.aio.EOF)

    def cancel(self) -> None:
        self._error = ConnectionLostError("the stream was given up")
        self._task.cancel()


class BrokenStream:
    """A stream without a server."""

    def __init__(self, error: MQClientError) -> None:
        self._error = error

    async def write(self, request: Any) -> None:
        raise self._error

    async def read(self) -> Any:
        raise self._error

    async def done_writing(self) -> None:
        """No server to tell."""

    def cancel(self) -> None:
        """Nothing to give up."""
