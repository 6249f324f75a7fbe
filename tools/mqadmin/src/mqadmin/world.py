"""What a command needs from outside: the time, files, and an event loop to ask the cluster from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import typer

from mqclient import Admin
from osenv import Clock, Disk, RealClock, RealDisk

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The real one by default; tests bring their own as the context's `obj`."""

    clock: Clock = field(default_factory=RealClock)
    open_disk: Callable[[], Disk] = RealDisk
    run: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run

    @staticmethod
    def of(context: typer.Context) -> World:
        """The world that the command runs in."""
        return context.ensure_object(World)

    def read_file(self, path: Path) -> bytes:
        """What the file holds. Raises BadParameter."""
        path = path.absolute()
        try:
            file = self.open_disk().open(path, read_only=True)
            try:
                return file.pread(file.size(), 0)
            finally:
                file.close()
        except OSError as error:
            raise typer.BadParameter(f"{path} cannot be read: {error.strerror or error}") from None

    def ask(self, url: str, question: Callable[[Admin], Awaitable[T]]) -> T:
        """What the cluster behind `url` answers. Raises MQClientError."""

        async def asked() -> T:
            async with Admin(url) as admin:
                return await question(admin)

        return cast("T", self.run(asked()))
