"""`python -m hourglass_loadtest load`: one load on one shop, and its report.

Locust is a process of its own: it is gevent's from its first line, and ends with us, however we end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from hourglass_loadtest.machine import describe_run, write_evidence
from hourglass_loadtest.run import RunError
from hourglass_loadtest.shop import page
from hourglass_loadtest.shop.options import LoadOptions, Target, target_of
from hourglass_loadtest.shop.summary import (
    LOCUST,
    Evidence,
    Watched,
    complaints,
    summarize,
    wait_for_the_end,
    watch_lags,
    watch_processes,
)
from hourglass_loadtest.users.plan import LEASH_VARIABLE, PLAN_VARIABLE, LoadPlan, Records, Stage, read_records
from hourglass_local.cluster_shop import payment_window_ms, with_payment_window
from osenv.process import stop_event

BUYERS = 256
EXIT_GOOD, EXIT_FAILED = 0, 1
REPORT_JSON, REPORT_HTML, REPORT_PNG, RECORDS = "report.json", "report.html", "report.png", "records.jsonl"
EXTRA_S = 60.0  # beyond the stages and the visits' own end
STOP_MAX_S = 45.0
LOG_LINES = 15
PAGE_HOST = "127.0.0.1"

# Something that goes on beside the load, and ends before it or with it.
Beside = Callable[[Target, Evidence], Coroutine[Any, Any, None]]

LOCUSTFILE = Path(__file__).parents[1] / "users" / "locustfile.py"


async def run_load(options: LoadOptions, console: Console, *, title: str = "load", beside: Beside | None = None) -> int:
    """The exit code: 1 when something is wrong that must not be. Raises RunError and what a cluster raises."""
    async with target_of(options, console, quick_retries=beside is not None) as target:
        console.print(f"The shop: {target.description['shop']}. {_plan_sentence(options)}", highlight=False)
        evidence = await one_load(target, options, options.stages, console, beside=beside)
        console.print("The load is over; waiting until every order has ended.", highlight=False)
        evidence.ending = await wait_for_the_end(target, evidence.begun, window_s(options))
        description = target.description
    document = document_of(title, options, description, summarize(evidence))
    write_report(options, document, [evidence], console)
    return verdict(complaints(evidence), console)


def window_s(options: LoadOptions) -> float:
    """The time to pay."""
    return payment_window_ms(with_payment_window(options.payment_window)) / 1000


async def one_load(
    target: Target,
    options: LoadOptions,
    stages: Sequence[Stage],
    console: Console,
    *,
    beside: Beside | None = None,
    **plan_settings: Any,
) -> Evidence:
    """Play these stages on the shop; when it returns all visits have ended. Raises RunError."""
    options.folder.mkdir(parents=True, exist_ok=True)
    records = options.folder / RECORDS
    records.unlink(missing_ok=True)
    plan = LoadPlan(
        orders_url=target.orders_url,
        payments_url=target.payments_url,
        tokens=[target.badges.buyer(f"buyer-{number}") for number in range(BUYERS)],
        product_ids=target.product_ids,
        records=str(records.absolute()),
        stages=list(stages),
        seed=options.seed,
        **plan_settings,
    )
    watched = Watched()
    async with locust(plan, options.folder, page_port=options.page_port) as run:
        begun = time.time()
        evidence = Evidence(begun, stages, Records([], [], [], []), watched)
        if options.page_port is not None:
            console.print(
                f"Locust's page: http://{PAGE_HOST}:{options.page_port}   Ctrl-C ends the load.", highlight=False
            )
        async with _watching(target, run, watched):
            await _played(run, target, evidence, beside, has_page=options.page_port is not None)
    found = read_records(records)
    if not found.visits:
        if options.page_port is None:
            raise RunError(f"no visit has begun; see {options.folder / 'locust.log'}")
        console.print("No load was started on the page.")
    first = min((visit.intended for visit in found.visits), default=begun)
    # Locust takes a second to start; its first stage begins with its first user.
    return replace(evidence, records=found, begun=first)


async def _played(run: LocustRun, target: Target, evidence: Evidence, beside: Beside | None, *, has_page: bool) -> None:
    """Return when the load and what goes on beside it are over; if one of them fails, the other one is ended."""
    tasks = [asyncio.create_task(_ended(run, has_page=has_page))]
    if beside is not None:
        tasks.append(asyncio.create_task(beside(target, evidence)))
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ended(run: LocustRun, *, has_page: bool) -> None:
    if not has_page:
        await run.wait()
        return
    await stop_event().wait()
    await run.stop()


@contextlib.asynccontextmanager
async def _watching(target: Target, run: LocustRun, watched: Watched) -> AsyncIterator[None]:
    def pids() -> Mapping[str, int]:
        return {**target.pids(), LOCUST: run.pid}

    watches: list[Coroutine[Any, Any, NoReturn]] = [watch_processes(pids, watched)]
    if target.queue_url is not None:
        watches.append(watch_lags(target.queue_url, watched))
    tasks = [asyncio.create_task(watch) for watch in watches]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def document_of(
    title: str, options: LoadOptions, description: Mapping[str, object], results: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole report; code and machine are described as they are now."""
    return {
        "title": title,
        **describe_run(),
        "run": dict(description)
        | {"seed": options.seed, "stages": [[s.visits_per_s, s.seconds] for s in options.stages]},
        "results": dict(results),
    }


def write_report(options: LoadOptions, document: dict[str, Any], loads: Sequence[Evidence], console: Console) -> None:
    """Page, picture and document; of several loads the last one is drawn. Raises OSError."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    (options.folder / REPORT_JSON).write_text(text, encoding="utf-8")
    svg = page.draw(loads[-1], document, options.folder / REPORT_PNG)
    (options.folder / REPORT_HTML).write_text(page.page_of(document, svg), encoding="utf-8")
    console.print(f"Report: {options.folder / REPORT_HTML} (and .json, .png)", highlight=False, soft_wrap=True)
    if options.out is not None:
        write_evidence(options.out, document, console)


def verdict(found: Sequence[str], console: Console) -> int:
    """Say what is wrong; the exit code."""
    for sentence in found:
        console.print(f"FAILED: {sentence}", highlight=False, soft_wrap=True)
    return EXIT_FAILED if found else EXIT_GOOD


def _plan_sentence(options: LoadOptions) -> str:
    if not options.stages:
        return "Locust's page says how many users there are."
    stages = ", ".join(f"{stage.visits_per_s:g}/s for {stage.seconds:g} s" for stage in options.stages)
    return f"Visits: {stages}; level 16 is {options.payment_window}."


class LocustRun:
    """A running Locust; `log` is what it says."""

    def __init__(self, process: asyncio.subprocess.Process, plan: LoadPlan, log: Path) -> None:
        self._process = process
        self._plan = plan
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> None:
        """Return when all stages are over. Raises RunError when Locust fails, or takes far too long."""
        seconds = sum(stage.seconds for stage in self._plan.stages) + self._plan.finish_s + EXTRA_S
        try:
            async with asyncio.timeout(seconds if self._plan.stages else None):
                code = await self._process.wait()
        except TimeoutError:
            raise RunError(
                f"Locust was not done after {seconds:.0f} s; the end of {self._log}:\n{self._tail()}"
            ) from None
        self._check(code)

    async def stop(self) -> None:
        """Ask it to end; visits that have begun may end. Harmless when it has ended. Raises RunError."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)
            try:
                async with asyncio.timeout(STOP_MAX_S):
                    await self._process.wait()
            except TimeoutError:
                raise RunError(f"Locust did not end within {STOP_MAX_S:g} s") from None

    def _check(self, code: int) -> None:
        # 1 is its word for requests that failed, which the report counts.
        if code not in (0, 1):
            raise RunError(f"Locust ended with code {code}; the end of {self._log}:\n{self._tail()}")
        if "Traceback" in (text := self._log.read_text(encoding="utf-8", errors="replace")):
            raise RunError(f"a visit failed in itself; see {self._log}:\n{text[text.index('Traceback') :][:2000]}")

    def _tail(self) -> str:
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-LOG_LINES:])


@contextlib.asynccontextmanager
async def locust(plan: LoadPlan, folder: Path, *, page_port: int | None = None) -> AsyncIterator[LocustRun]:
    """Locust with this plan; files go to `folder`. With `page_port` it has its page there, and begins when it is told.

    It is gone when the block ends.
    """
    plan_file, log = folder / "plan.json", folder / "locust.log"
    plan.write(plan_file)
    how = ["--headless"] if page_port is None else ["--web-host", PAGE_HOST, "--web-port", str(page_port)]
    command = ["-f", str(LOCUSTFILE), *how, "--only-summary", "--stop-timeout", str(round(plan.finish_s) + 5)]
    leash, held = os.pipe()
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "locust",
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            env=os.environ | {PLAN_VARIABLE: str(plan_file), LEASH_VARIABLE: str(leash)},
            pass_fds=(leash,),
            start_new_session=True,  # Ctrl-C in the terminal is ours alone
        )
    os.close(leash)
    try:
        yield LocustRun(process, plan, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(held)
        plan_file.unlink(missing_ok=True)  # it holds tokens
