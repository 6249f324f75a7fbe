"""PostgreSQL as a queue: a table, SELECT ... FOR UPDATE SKIP LOCKED, and LISTEN so that a consumer need not poll.

A delayed message has a time in its row; the consumer polls for those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hourglass_loadtest.peers.hourglass_queue import python_client
from hourglass_loadtest.peers.peer import TOGETHER, Connection, Deliver, PeerError, output_of
from servicekit.testing.postgresql import DURABLE, NoPostgresError, PostgresServer, PostgresServerError, programs_folder

TAKE_MAX, POLL_S = 128, 0.1
_TABLE = (
    "CREATE TABLE message (id bigserial PRIMARY KEY, due timestamptz NOT NULL DEFAULT now(), body bytea NOT NULL)",
    "CREATE INDEX message_due ON message (due, id)",
)
_INSERT = (
    "WITH told AS (SELECT pg_notify('message', '')) INSERT INTO message (body) SELECT unnest($1::bytea[]) FROM told"
)
_INSERT_LATER = "INSERT INTO message (due, body) VALUES (now() + $2 * interval '1 millisecond', $1)"
_TAKE = (
    "DELETE FROM message WHERE id = ANY(ARRAY(SELECT id FROM message WHERE due <= now() ORDER BY due, id"
    " LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING body"
)


class PostgresPeer:
    """One server with its own settings as Debian ships them: every commit is on disk before its answer."""

    name, durable, window, delays = "PostgreSQL", True, TOGETHER, True
    settings: Mapping[str, str] = {
        "fsync": "on",
        "synchronous_commit": "on",
        "1 in flight": "one row a transaction",
        "64 in flight": "64 rows a transaction",
        "consume": f"DELETE of up to {TAKE_MAX} rows, SKIP LOCKED, woken by NOTIFY",
        "delay": f"a time in the row, polled every {POLL_S * 1000:.0f} ms",
    }

    def __init__(self) -> None:
        self._server: PostgresServer | None = None

    def missing(self) -> str | None:
        try:
            programs_folder()
        except NoPostgresError as error:
            return str(error)
        return None

    async def start(self, folder: Path) -> str:
        server = PostgresServer(DURABLE)  # in a folder of its own, which the user postgres can enter
        try:
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(server.create_database, "bench")
            await asyncio.to_thread(server.run_sql, "bench", *_TABLE)
        except PostgresServerError as error:
            server.remove()
            raise PeerError(str(error)) from error
        self._server = server
        return server.url("bench").replace("+asyncpg", "")

    def pids(self) -> list[int]:
        return [self._server.pid] if self._server else []

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.remove)

    def client(self, address: str, seconds: float) -> list[str]:
        return python_client(self.name, address, seconds)

    def versions(self) -> dict[str, str]:
        return {
            "server": output_of(str(programs_folder() / "postgres"), "--version"),
            "client": f"asyncpg {version('asyncpg')}",
        }


class _Connection:
    def __init__(self, url: str, connection: Any) -> None:
        self._url, self._connection = url, connection
        self._one = asyncio.Lock()  # a connection does one thing at a time

    async def produce(self, body: bytes) -> None:
        await self.produce_together([body])

    async def produce_together(self, bodies: Sequence[bytes]) -> None:
        async with self._one:
            await self._connection.execute(_INSERT, bodies)

    async def produce_delayed(self, body: bytes, delay_ms: int) -> None:
        async with self._one:
            await self._connection.execute(_INSERT_LATER, body, delay_ms)

    async def consume(self, deliver: Deliver) -> None:
        told = asyncio.Event()
        await self._connection.add_listener("message", lambda *_: told.set())
        while True:
            told.clear()
            if rows := await self._connection.fetch(_TAKE, TAKE_MAX):
                deliver([row["body"] for row in rows])
                continue
            try:
                async with asyncio.timeout(POLL_S):
                    await told.wait()
            except TimeoutError:
                continue

    async def close(self) -> None:
        await self._connection.close()


async def connect(url: str) -> Connection:
    """One session."""
    import asyncpg  # type: ignore[import-untyped]  # noqa: PLC0415 - where it is used, as the clients of the others

    return _Connection(url, await asyncpg.connect(url))
