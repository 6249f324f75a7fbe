"""A service as a process of its own, for tests: started, asked for its port, and gone when the test is over."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from osenv import RealClock
from osenv.clock import timeout

STOP_MAX_S = 30  # patience with a busy machine, on which a start alone takes some ten seconds


class ServiceProcess:
    """A process that was started; `name` is what its log lines call it."""

    def __init__(self, name: str, process: Process) -> None:
        self._name = name
        self._process = process

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        """kill -9; on return it is gone."""
        self._process.kill()
        await self._process.wait()

    async def port(self) -> int:
        """The port in the line that says that the service is listening. Raises AssertionError when it ends before."""
        stderr = self._process.stderr
        if stderr is None:
            raise AssertionError("the process was started without its log")
        async for line in stderr:
            if f"{self._name} is listening".encode() in line:
                return int(line.split(b'"port": ')[1].split(b",")[0])
        raise AssertionError(f"{self._name} ended before it was listening")

    async def ended(self) -> tuple[int | None, str]:
        """Exit code and what is left of the log. Raises TimeoutError when it does not end within STOP_MAX_S."""
        async with timeout(RealClock(), STOP_MAX_S):
            _, stderr = await self._process.communicate()
        return self._process.returncode, stderr.decode()


@asynccontextmanager
async def service_process(
    module: str, folder: Path, variables: Mapping[str, str], *arguments: str, prefix: str, name: str
) -> AsyncIterator[ServiceProcess]:
    """`python -m module` in `folder`, where every warning is an error.

    Of this process's variables that begin with `prefix` it gets none, and `variables` in their place.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(prefix)}
    command = [sys.executable, "-W", "error", "-m", module, *arguments]
    process = await asyncio.create_subprocess_exec(*command, env=environment | dict(variables), stderr=PIPE, cwd=folder)
    try:
        yield ServiceProcess(name, process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
