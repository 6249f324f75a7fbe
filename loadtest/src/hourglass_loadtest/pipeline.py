"""`python -m hourglass_loadtest pipeline`: what reading a topic by Spark costs, and making silver of generated events.

Each run of `python -m analytics` is watched from outside: Python, its Java, and the workers that Java starts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from rich import box
from rich.console import Console
from rich.table import Table

from hourglass_loadtest.machine import describe_run, write_evidence
from hourglass_loadtest.measure.clients import TOPIC
from hourglass_loadtest.run import COMMIT_LOG_FILE_BYTES, RunError, run_client
from hourglass_loadtest.workload import Flush, Kind, Workload
from hourglass_local.cluster import Cluster
from hourglass_local.process import MIB
from hourglass_local.waiting import alongside

FILE_NAME = "pipeline-benchmarks.json"
MASTER, MEMORY = "local[2]", "2g"
MESSAGES, SIZES, RUNS = 2_000_000, (1_000_000, 2_000_000, 5_000_000, 10_000_000), 3
QUICK_PART = 50  # of all sizes
SOURCE, SILVER = "source", "silver"
BODY_BYTES = 1024
IN_FLIGHT = 1_024  # so that sends go out in batches
EVENTS_OF_AN_ORDER = 6.27  # as the generator's stories have it: with both messages of its timer
SEED = 1
DAYS = 7
METRICS = ("wall_s", "cpu_s", "memory_peak_mib", "java_memory_peak_mib", "python_memory_peak_mib")
SAMPLE_INTERVAL_S = 0.2
TIMEOUT_S = 3_600.0
ERROR_LINES = 12
JAVA, PYTHON = "java", "python"


def add_pipeline_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], evidence: Path) -> None:
    """The command and its options."""
    command = commands.add_parser("pipeline", help="what the pipeline on Spark costs: the source, and the silver job")
    command.add_argument("--only", choices=(SOURCE, SILVER), help="one of the two")
    command.add_argument("--messages", type=int, default=MESSAGES, metavar="N", help="in the topic; %(default)s")
    command.add_argument(
        "--events", type=int, action="append", metavar="N", help=f"for silver; may be repeated; {SIZES}"
    )
    command.add_argument("--runs", type=int, default=RUNS, metavar="N", help="of each measurement; %(default)s")
    command.add_argument("--master", default=MASTER, help="of Spark; %(default)s")
    command.add_argument("--memory", default=MEMORY, help="of Spark's driver; %(default)s")
    command.add_argument("--quick", action="store_true", help=f"a {QUICK_PART}th of all sizes, one run")
    command.add_argument(
        "--out", type=Path, metavar="FILE", help=f"for the results; without it, only whole ones: {evidence}/{FILE_NAME}"
    )
    command.set_defaults(evidence=evidence)


async def run_pipeline(options: argparse.Namespace, console: Console) -> None:
    """Measure, print, write. Raises RunError, ProcessError, OSError."""
    part = QUICK_PART if options.quick else 1
    runs = 1 if options.quick else options.runs
    sizes = [events // part for events in options.events or SIZES]
    session = ["--master", options.master, "--memory", options.memory]
    document = describe_run()
    document["machine"] |= {"pyspark": version("pyspark"), "pyarrow": version("pyarrow"), "java": _java()}
    document |= {"master": options.master, "driver_memory": options.memory}
    with TemporaryDirectory(prefix="hourglass-pipeline-") as name:
        folder = Path(name)
        if options.only != SILVER:
            with console.status("the source", refresh_per_second=1):
                document[SOURCE] = await measure_source(folder, options.messages // part, runs, session)
        if options.only != SOURCE:
            document[SILVER] = await measure_silver(folder, sizes, runs, session, console)
    _print(console, document)
    whole = not options.quick and options.only is None
    out = options.out or (options.evidence / FILE_NAME if whole else None)
    if out is not None:
        write_evidence(out, document, console)


def _java() -> str:
    try:
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    except FileNotFoundError:
        return f"none on {platform.system()}"
    return said.partition("\n")[0]


def _print(console: Console, document: dict[str, Any]) -> None:
    if SOURCE in document:
        table = _table("read", "rows/s", "s", "outside the reader")
        for number, run in enumerate(document[SOURCE]["runs"], start=1):
            share = f"{run['outside_reader_share']:.1%}"
            table.add_row(f"run {number}", f"{run['rows_per_s']:,.0f}", f"{run['wall_s']:.1f}", share)
        console.print(table)
    if SILVER in document:
        table = _table("silver over", "wall s", "CPU s", "MiB", "Java", "Python")
        for size in document[SILVER]["sizes"]:
            table.add_row(f"{size['events']:,}", *(f"{size['median'][name]:,.1f}" for name in METRICS))
        for name in ("times", "exponent"):
            grown = document[SILVER]["growth"]
            table.add_row(name, *(f"{grown[metric][name]:.2f}" for metric in METRICS if metric in grown))
        console.print(table)


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


async def measure_source(folder: Path, messages: int, runs: int, session: list[str]) -> dict[str, Any]:
    """For JSON. `session` are options of analytics. Raises RunError, ProcessError, PortInUseError."""
    cluster = Cluster(
        folder / "cluster", orders=False, flush=Flush.ASYNC_FLUSH, commit_log_file_bytes=COMMIT_LOG_FILE_BYTES
    )
    async with cluster:
        return await alongside(_measure(cluster, messages, runs, session), cluster.watch())


async def _measure(cluster: Cluster, messages: int, runs: int, session: list[str]) -> dict[str, Any]:
    fill = Workload(
        name="fill",
        kind=Kind.PRODUCE,
        messages=messages,
        warm_up_messages=0,
        in_flight=IN_FLIGHT,
        body_bytes=BODY_BYTES,
    )
    filled = await run_client(cluster.url, cluster.brokers[0].pid, fill)
    servers = ";".join(cluster.name_server_addresses)
    found, used = await run_analytics(
        ["bench", "source", "--namesrv-addr", servers, "--topic", TOPIC, "--runs", str(runs), *session]
    )
    for run in found["runs"]:
        if run["rows"] != messages:
            raise RunError(f"{run['rows']:,} rows were read of {messages:,} messages")
    return {
        "messages": messages,
        "body_bytes": BODY_BYTES,
        "queues": fill.queues,
        "fill_s": messages / filled["msg_per_s"],
        "runs": found["runs"],
        "whole_process": used,
    }


async def measure_silver(
    folder: Path, sizes: Sequence[int], runs: int, session: list[str], console: Console
) -> dict[str, Any]:
    """For JSON: each size with its runs, and the growth from the first to the last. Raises RunError."""
    found = []
    for events in sizes:
        with console.status(f"silver over {events:,} events", refresh_per_second=1):
            found.append(await _measure_size(folder / f"warehouse-{events}", events, runs, session))
    return {"seed": SEED, "days": DAYS, "sizes": found, "growth": growth(found)}


async def _measure_size(warehouse: Path, events: int, runs: int, session: list[str]) -> dict[str, Any]:
    orders = max(1, round(events / EVENTS_OF_AN_ORDER))
    where = ["--warehouse", str(warehouse), *session]
    generate = ["generate", "--orders", str(orders), "--seed", str(SEED), "--days", str(DAYS), *where]
    try:
        generated = (await run_analytics(generate))[1]
        bronze_bytes = sum(file.stat().st_size for file in (warehouse / "bronze").rglob("*.parquet"))
        done = [await run_analytics(["bench", "silver", *where]) for _ in range(runs)]
    finally:
        shutil.rmtree(warehouse, ignore_errors=True)
    results = [said | used for said, used in done]
    return {
        "events": results[0]["events"],
        "orders": results[0]["orders"],
        "bronze_mib": bronze_bytes / 2**20,
        "generate_s": generated["total_s"],
        "memory": results[0]["memory"],
        "median": {name: statistics.median(result[name] for result in results) for name in METRICS},
        "runs": [
            {name: result[name] for name in (*METRICS, "total_s")} | {"tasks": result["tasks"]} for result in results
        ],
    }


def growth(sizes: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """By metric: how many times as much at the last size as at the first, the exponent p of events^p that fits all
    sizes best, and what each further event costs between the first and the last. Nothing for one size.
    """
    if len(sizes) < 2:
        return {}
    events = [float(size["events"]) for size in sizes]
    grown = {}
    for name in METRICS:
        values = [float(size["median"][name]) for size in sizes]
        grown[name] = {
            "times": values[-1] / values[0],
            "events_times": events[-1] / events[0],
            "exponent": _slope([math.log(one) for one in events], [math.log(one) for one in values]),
            "per_million_events": (values[-1] - values[0]) / (events[-1] - events[0]) * 1e6,
        }
    return grown


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    return statistics.linear_regression(x, y).slope


@dataclass(slots=True)
class Watch:
    """Memory and processor time of a process and its descendants, as far as samples show them.

    Memory is resident, and what processes share is counted once: each has its part of it (Linux's PSS). Java forks
    before it starts a program, and would be counted twice for that moment. Java's memory follows its limit rather than
    its need; the report has the peak of execution memory beside it.
    """

    pid: int
    peak_mib: float = 0.0
    peak_mib_of: dict[str, float] = field(default_factory=lambda: {JAVA: 0.0, PYTHON: 0.0})
    _cpu_s: dict[tuple[int, float], float] = field(default_factory=dict)  # of each process, also when it has ended

    @property
    def cpu_s(self) -> float:
        """Processor time of all of them, in user and system mode."""
        return sum(self._cpu_s.values())

    def sample(self) -> None:
        """Look once."""
        now_mib = {JAVA: 0.0, PYTHON: 0.0}
        for process in self._processes():
            try:
                times = process.cpu_times()
                self._cpu_s[process.pid, process.create_time()] = times.user + times.system
                memory = process.memory_full_info()
                now_mib[JAVA if process.name() == JAVA else PYTHON] += getattr(memory, "pss", memory.rss) / MIB
            except (psutil.NoSuchProcess, psutil.AccessDenied):  # it has ended just now
                continue
        self.peak_mib = max(self.peak_mib, sum(now_mib.values()))
        for name, size in now_mib.items():
            self.peak_mib_of[name] = max(self.peak_mib_of[name], size)

    def _processes(self) -> list[psutil.Process]:
        try:
            process = psutil.Process(self.pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


async def run_analytics(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], dict[str, float]]:
    """What it says in its last line if that is JSON, and what it has used. Raises RunError."""
    begin = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "hourglass_local.child",  # it ends with us, however we end
        "analytics",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | dict(environment or {}),
        start_new_session=True,  # Ctrl-C in the terminal is ours alone
    )
    watch = Watch(process.pid)
    watching = asyncio.create_task(_sample(watch))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            # Not communicate(): it would close the leash.
            output, errors, code = await asyncio.gather(_read(process.stdout), _read(process.stderr), process.wait())
    except TimeoutError:
        raise RunError(f"analytics {arguments[0]} was not done after {TIMEOUT_S:.0f} s") from None
    finally:
        watching.cancel()
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if code != 0:
        end = "\n".join(errors.splitlines()[-ERROR_LINES:])
        raise RunError(f"analytics {' '.join(arguments[:2])} ended with code {code}:\n{end}")
    used = {"total_s": time.perf_counter() - begin, "cpu_s": watch.cpu_s, "memory_peak_mib": watch.peak_mib}
    used |= {f"{name}_memory_peak_mib": size for name, size in watch.peak_mib_of.items()}
    last_line = output.strip().rpartition("\n")[2]
    return json.loads(last_line) if last_line.startswith("{") else {}, used


async def _sample(watch: Watch) -> None:
    while True:
        watch.sample()
        await asyncio.sleep(SAMPLE_INTERVAL_S)


async def _read(stream: asyncio.StreamReader | None) -> str:
    if stream is None:
        raise AssertionError("both streams are pipes")
    return (await stream.read()).decode(errors="replace")
