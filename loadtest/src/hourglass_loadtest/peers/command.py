"""The command `peers`: chosen queues, one server at a time, rounds in a random order of a stated seed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from rich.console import Console

from hourglass_loadtest.machine import describe_run, write_evidence
from hourglass_loadtest.peers import report
from hourglass_loadtest.peers.load import BODY_BYTES, DELAY_MS, DELAYED_PER_S, IN_FLIGHT, RATE_PER_S, run_load
from hourglass_loadtest.peers.meter import SyncCounter, cpu_seconds, filesystem, memory_mib
from hourglass_loadtest.peers.peer import Peer, PeerError
from hourglass_loadtest.peers.registry import OURS, PEERS
from hourglass_loadtest.run import RunError
from hourglass_loadtest.workload import WorkloadError
from hourglass_local.process import ProcessError

SECONDS, ROUNDS, MINUTES_MAX = 2.0, 3, 25.0
RUN_TIMEOUT_S = 300.0
IDLE_S = 1.0
ERROR_CHARACTERS = 1_500


def add_peers_parser(commands: Any, evidence: Path) -> None:
    """The commands `peers` and `peers-client`."""
    parser: ArgumentParser = commands.add_parser("peers", help="measure Hourglass and other queues in turns")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="queues with this in their names")
    parser.add_argument("--without", action="append", default=[], metavar="WORD", help="not those")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of each figure; default: {SECONDS:g}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default: {ROUNDS}")
    parser.add_argument("--minutes", type=float, default=MINUTES_MAX, help="no server starts after them; default: 25")
    parser.add_argument("--seed", type=int, help="of the order; default: drawn, and written to the results")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help=f"for the results; without it, only a whole run: {evidence}/peers.json"
    )
    client: ArgumentParser = commands.add_parser("peers-client", help="one load (started by `peers`)")
    client.add_argument("name")
    client.add_argument("address")
    client.add_argument("seconds", type=float)


async def run_client(options: Namespace) -> None:
    """The process that `python_client` names."""
    make, connect = PEERS[options.name]
    peer = make()
    await run_load(connect, options.address, window=peer.window, delays=peer.delays, seconds=options.seconds)


def choose(names: Sequence[str], only: Sequence[str], without: Sequence[str]) -> list[str]:
    """Those with one of the words of `only`, all when there are none, less those with one of `without`.

    Raises WorkloadError for a word that no name has.
    """
    for word in (*only, *without):
        if not any(word.lower() in name.lower() for name in names):
            raise WorkloadError(f"there is no peer with {word!r} in its name; there are: {', '.join(names)}")

    def has(name: str, words: Sequence[str]) -> bool:
        return any(word.lower() in name.lower() for word in words)

    return [name for name in names if (not only or has(name, only)) and not has(name, without)]


def orders(names: Sequence[str], rounds: int, seed: int) -> list[list[str]]:
    """Each round has every name once, in an order of its own; the same for the same seed."""
    rng = random.Random(seed)  # noqa: S311 - an order that can be had again
    return [rng.sample(list(names), len(names)) for _ in range(rounds)]


async def run_peers(options: Namespace, console: Console, evidence: Path) -> None:
    """Run, print the table, write results, page and plot. Raises WorkloadError, and RunError when one has failed."""
    if options.rounds < 1 or options.seconds <= 0:
        raise WorkloadError("--rounds is at least 1, and --seconds more than 0")
    chosen = choose(list(PEERS), options.only, options.without)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    head, begin = describe_run(), time.monotonic()
    absent = {name: why for name in chosen if (why := PEERS[name][0]().missing())}
    rounds = orders([name for name in chosen if name not in absent], options.rounds, seed)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen if name not in absent}
    failed: dict[str, list[str]] = {}
    not_run: list[str] = []
    for number, names in enumerate(rounds, 1):
        for name in names:
            if time.monotonic() > begin + options.minutes * 60:
                not_run.append(f"{name}, round {number}")
                continue
            console.print(f"round {number} of {options.rounds}: {name}", highlight=False)
            try:
                runs[name].append(await _measured(PEERS[name][0](), options.seconds))
            except (PeerError, ProcessError, OSError) as error:
                failed.setdefault(name, []).append(f"round {number}: {error}")
                console.print(f"  {error}", style="red", highlight=False, markup=False)
    peers = {
        name: {
            "durable": (peer := PEERS[name][0]()).durable,
            "settings": dict(peer.settings),
            "versions": peer.versions(),
            "figures": report.summary(done),
            "runs": done,
        }
        for name, done in runs.items()
        if done
    }
    document = head | {
        "seed": seed,
        "seconds": options.seconds,
        "rounds": rounds,
        "took_s": time.monotonic() - begin,
        "filesystem": filesystem(Path(head["machine"]["store_folder"])),
        "work": {
            "body_bytes": BODY_BYTES, "in_flight": IN_FLIGHT, "rate_per_s": RATE_PER_S,
            "delay_ms": DELAY_MS, "delayed_per_s": DELAYED_PER_S,
        },
        "left_out": absent,
        "failed": failed,
        "not_run": not_run,
        "peers": peers,
        "ratios": report.ratios(peers),
    }  # fmt: skip
    report.print_table(console, document)
    whole = not options.only and not options.without
    if (out := options.out or (evidence / "peers.json" if whole else None)) is not None:
        write_evidence(out, document, console)
        report.write_page(out.with_suffix(".md"), out.with_suffix(".svg"), document)
    if failed or (OURS in chosen and OURS not in peers):
        raise RunError(f"these did not do their work: {', '.join(failed) or OURS}")


async def _measured(peer: Peer, seconds: float) -> dict[str, Any]:
    """One round of one peer, in a folder that goes with it. Raises PeerError, ProcessError."""
    with TemporaryDirectory(prefix="hourglass-peers-") as folder:
        load_before = psutil.getloadavg()[0]
        try:
            address = await peer.start(Path(folder))
            await asyncio.sleep(IDLE_S)
            idle_mib = memory_mib(peer.pids())
            async with _client(peer.client(address, seconds)) as process:
                figures, peak_mib = await _read(process, peer, idle_mib)
        finally:
            await peer.stop()
    return {
        "figures": figures | {"memory": {"idle_mib": idle_mib, "peak_mib": peak_mib}},
        "load_average_before": load_before,
    }


@asynccontextmanager
async def _client(command: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _read(
    process: asyncio.subprocess.Process, peer: Peer, idle_mib: float
) -> tuple[dict[str, dict[str, float]], float]:
    """Metrics by figure, and the largest memory at the end of one."""
    if process.stdout is None or process.stderr is None:
        raise AssertionError("the streams of the client are pipes")
    errors = asyncio.create_task(process.stderr.read())
    meter = _Meter(peer, process.pid, idle_mib)
    try:
        async with asyncio.timeout(RUN_TIMEOUT_S):
            async for line in process.stdout:
                if line.startswith(b"{"):  # a library may write lines of its own
                    await meter.note(json.loads(line))
            code = await process.wait()
    except TimeoutError:
        raise PeerError(f"the client was not done after {RUN_TIMEOUT_S:.0f} s") from None
    finally:
        await meter.close()
        if process.returncode is None:
            process.kill()
        said = (await errors).decode(errors="replace")
    if code:
        raise PeerError(f"the client ended with code {code}: {said[-ERROR_CHARACTERS:]}")
    return meter.figures, meter.peak_mib


class _Meter:
    """What the processes use between the events of the client."""

    def __init__(self, peer: Peer, client_pid: int, idle_mib: float) -> None:
        self._server_pids, self._client_pids = peer.pids(), [client_pid]
        self._syncs = SyncCounter()
        self._cpu = 0.0, 0.0
        self.figures: dict[str, dict[str, float]] = {}
        self.peak_mib = idle_mib

    async def note(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "next":
            await self._syncs.start(self._server_pids)
        elif event["event"] == "begin":
            self._cpu = cpu_seconds(self._server_pids), cpu_seconds(self._client_pids)
        elif event["event"] == "end":
            server_s, client_s = cpu_seconds(self._server_pids), cpu_seconds(self._client_pids)
            thousands = event["messages"] / 1000
            found = dict(event["metrics"]) | {
                "server_cpu_s_per_1000": (server_s - self._cpu[0]) / thousands,
                "client_cpu_s_per_1000": (client_s - self._cpu[1]) / thousands,
            }
            if (syncs := await self._syncs.stop()) is not None:
                found["syncs_per_message"] = syncs / event["messages"]
            self.figures[event["figure"]] = found
            self.peak_mib = max(self.peak_mib, memory_mib(self._server_pids))

    async def close(self) -> None:
        await self._syncs.stop()
