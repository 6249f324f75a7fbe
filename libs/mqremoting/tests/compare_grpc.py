"""Requests and stream messages per second over loopback: frames beside grpc.aio, the same bytes, in one run.

    .venv/bin/python libs/mqremoting/tests/compare_grpc.py [ROUNDS]

Client and server are a process each on uvloop. 1 KiB goes up and 32 B come back, untouched by protobuf. The rounds
alternate; the table has the median of each, with the least and the most, and the processor time that client and server
take for one, which a busy machine changes less. Not a test: `make test` does not run it.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import psutil
import uvloop

from mqremoting import Call, Command, ConnectionConfig, Server, Stream, connect

HOST, UNARY, STREAM = "127.0.0.1", 20_001, 20_002
UP, DOWN = bytes(1_024), bytes(32)
UNARY_PATH, STREAM_PATH = "/compare.Bytes/Unary", "/compare.Bytes/Stream"
SECONDS = 1.5
IN_FLIGHT = (1, 64)
CONFIG = ConnectionConfig()

Exchange = Callable[[int, float], Awaitable[float]]


class Bytes:
    """Answers every request, and every message of a stream, in the step in which it comes."""

    def on_request(self, call: Call) -> None:
        call.respond(DOWN)

    def on_stream(self, stream: Stream) -> None:
        def answer(message: Command | None) -> None:
            if message is None:
                stream.close()
            else:
                stream.write_now(DOWN)

        stream.deliver_to(answer)


async def serve_frames() -> None:
    print(await Server(Bytes()).listen(HOST, 0), flush=True)
    await asyncio.Event().wait()


async def serve_grpc() -> None:
    async def unary(request: bytes, context: Any) -> bytes:
        return DOWN

    async def stream(requests: Any, context: Any) -> None:
        while await context.read() is not grpc.aio.EOF:
            await context.write(DOWN)

    server = grpc.aio.server()
    handlers: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("compare.Bytes", handlers),))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    print(port, flush=True)
    await asyncio.Event().wait()


async def rate(one: Callable[[], Awaitable[object]], in_flight: int, seconds: float) -> float:
    """Calls of `one` per second, with so many at a time."""
    done, end = 0, time.perf_counter() + seconds

    async def work() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await one()
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*[work() for _ in range(in_flight)])
    return done / (time.perf_counter() - began)


async def stream_rate(
    write: Callable[[], Awaitable[None]], read: Callable[[], Awaitable[object]], in_flight: int, seconds: float
) -> float:
    """Messages per second on one stream, with so many unanswered."""
    done, end = 0, time.perf_counter() + seconds
    room = asyncio.Semaphore(in_flight)
    is_over = False

    async def write_all() -> int:
        count = 0
        while time.perf_counter() < end:
            await room.acquire()
            await write()
            count += 1
        return count

    began = time.perf_counter()
    writing = asyncio.create_task(write_all())
    while not is_over:
        await read()
        done += 1
        room.release()
        is_over = writing.done() and done == writing.result()
    return done / (time.perf_counter() - began)


async def measure(rounds: int, frames_port: int, grpc_port: int, servers: list[psutil.Process]) -> None:
    connection = await connect(HOST, frames_port, config=CONFIG)
    channel = grpc.aio.insecure_channel(f"{HOST}:{grpc_port}")
    call: Any = channel.unary_unary(UNARY_PATH)
    open_call: Any = channel.stream_stream(STREAM_PATH)
    frames_stream, grpc_stream = connection.open_stream(STREAM), open_call()

    async def frames_unary(in_flight: int, seconds: float) -> float:
        return await rate(lambda: connection.request(UNARY, UP, timeout_s=5), in_flight, seconds)

    async def grpc_unary(in_flight: int, seconds: float) -> float:
        return await rate(lambda: call(UP, timeout=5), in_flight, seconds)

    async def frames_streamed(in_flight: int, seconds: float) -> float:
        return await stream_rate(lambda: frames_stream.write(UP), frames_stream.read, in_flight, seconds)

    async def grpc_streamed(in_flight: int, seconds: float) -> float:
        return await stream_rate(lambda: grpc_stream.write(UP), grpc_stream.read, in_flight, seconds)

    kinds: dict[str, tuple[Exchange, Exchange]] = {
        "unary": (frames_unary, grpc_unary),
        "stream": (frames_streamed, grpc_streamed),
    }
    rates: dict[tuple[str, int, int], list[float]] = {}
    costs: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
    for number in range(rounds + 1):
        for kind, both in kinds.items():
            for in_flight in IN_FLIGHT:
                for which, exchange in enumerate(both):
                    seconds = SECONDS if number else SECONDS / 5
                    began, client_s, server_s = time.perf_counter(), time.process_time(), used_s(servers[which])
                    measured = await exchange(in_flight, seconds)
                    count = measured * (time.perf_counter() - began)
                    cost = (time.process_time() - client_s) / count, (used_s(servers[which]) - server_s) / count
                    if number:  # the first round warms up
                        rates.setdefault((kind, in_flight, which), []).append(measured)
                        costs.setdefault((kind, in_flight, which), []).append(cost)
    print(f"{'':8}{'in flight':>10}{'frames/s':>24}{'grpc.aio/s':>24}{'ratio':>7}  processor us: frames, grpc.aio")
    for kind in kinds:
        for in_flight in IN_FLIGHT:
            frames, other = rates[kind, in_flight, 0], rates[kind, in_flight, 1]
            ratio = statistics.median(frames) / statistics.median(other)
            shown_costs = ", ".join(shown_cost(costs[kind, in_flight, which]) for which in (0, 1))
            print(f"{kind:8}{in_flight:10}{shown(frames):>24}{shown(other):>24}{ratio:7.1f}  {shown_costs}")
    frames_stream.cancel()
    grpc_stream.cancel()
    await connection.close()
    await channel.close()


def shown(rates: list[float]) -> str:
    return f"{statistics.median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f})"


def shown_cost(costs: list[tuple[float, float]]) -> str:
    client, server = (statistics.median(one) * 1e6 for one in zip(*costs, strict=True))
    return f"{client:.0f} + {server:.0f}"


def used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    if sys.argv[1:] == ["frames"]:
        uvloop.run(serve_frames())
    elif sys.argv[1:] == ["grpc"]:
        uvloop.run(serve_grpc())
    else:
        servers = [
            subprocess.Popen([sys.executable, __file__, kind], stdout=subprocess.PIPE, text=True)
            for kind in ("frames", "grpc")
        ]
        try:
            ports = [int(server.stdout.readline()) for server in servers if server.stdout is not None]
            processes = [psutil.Process(server.pid) for server in servers]
            uvloop.run(measure(int(sys.argv[1]) if sys.argv[1:] else 5, ports[0], ports[1], processes))
        finally:
            for server in servers:
                server.terminate()
                server.wait()


if __name__ == "__main__":
    main()
