"""Locust as a process of its own: it is gevent's from its first line, and ends with us, however we end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from hourglass_loadtest.run import RunError
from hourglass_loadtest.users.plan import LEASH_VARIABLE, PLAN_VARIABLE, LoadPlan

LOCUSTFILE = Path(__file__).parents[1] / "users" / "locustfile.py"
EXTRA_S = 60.0  # beyond the stages and the visits' own end
STOP_MAX_S = 45.0
LOG_LINES = 15
PAGE_HOST = "127.0.0.1"


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
