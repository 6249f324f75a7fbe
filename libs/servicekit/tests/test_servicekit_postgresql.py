"""What is PostgreSQL's own: its limits of time, its sessions, a server that goes away, and what a unit costs."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from servicekit.errors import StorageUnavailableError
from servicekit.sql import backends as postgresql_module
from servicekit.sql.database import Database
from servicekit.testing.databases import NewDatabaseUrl
from servicekit.testing.postgresql import PostgresServer

pytestmark = [pytest.mark.system, pytest.mark.needs("postgresql")]

CHANGE = text("UPDATE t SET value = value + 1 WHERE n = :n")
COUNT = text("SELECT count(*) FROM t")
OWN_PID = text("SELECT pg_backend_pid()")
WAITING = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")

Work = Callable[[AsyncConnection], Awaitable[object]]


async def opened(url: str, pool_size: int = 10) -> Database:
    """With two rows in a table."""
    database = Database(url, pool_size)
    async with database.writing() as connection:
        await connection.execute(text("CREATE TABLE t (n INTEGER PRIMARY KEY, value INTEGER)"))
        await connection.execute(text("INSERT INTO t VALUES (1, 0), (2, 0)"))
        await connection.commit()
    return database


@pytest.fixture
async def database(new_postgresql_url: NewDatabaseUrl) -> AsyncIterator[Database]:
    database = await opened(new_postgresql_url("x"))
    yield database
    await database.dispose()


async def in_unit(database: Database, work: Work) -> None:
    async with database.writing() as connection:
        await work(connection)
        await connection.commit()


async def change(connection: AsyncConnection, n: int = 1) -> None:
    await connection.execute(CHANGE, {"n": n})


async def rejected(database: Database, work: Work) -> str:
    """What the unit says that it is no fault of its request."""
    with pytest.raises(StorageUnavailableError) as error:
        await in_unit(database, work)
    return str(error.value)


async def end_session(database: Database, pid: int) -> None:
    async def end(connection: AsyncConnection) -> None:
        await connection.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})

    await in_unit(database, end)


# -------------------------------------------------------------------------------------------------- limits of time


async def test_a_lock_that_another_unit_holds_for_too_long_is_given_up(
    new_postgresql_url: NewDatabaseUrl, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_module, "LOCK_MAX_MS", 50)
    impatient = Database(new_postgresql_url("x"))
    async with database.writing() as connection:
        await change(connection)
        assert "lock timeout" in await rejected(impatient, change)
        await connection.commit()
    await in_unit(impatient, change)
    await impatient.dispose()


async def test_a_statement_that_takes_too_long_is_given_up(
    new_postgresql_url: NewDatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_module, "STATEMENT_MAX_MS", 50)
    database = await opened(new_postgresql_url("x"))
    said = await rejected(database, lambda connection: connection.execute(text("SELECT pg_sleep(60)")))
    assert "statement timeout" in said
    await in_unit(database, change)
    await database.dispose()


async def test_a_unit_that_does_nothing_for_too_long_is_ended_by_the_server(
    new_postgresql_url: NewDatabaseUrl, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_module, "IDLE_IN_TRANSACTION_MAX_MS", 50)
    forgetful = Database(new_postgresql_url("x"))

    async def forget(connection: AsyncConnection) -> None:
        await change(connection)
        await in_unit(database, change)  # waits for the row, which is free when the server has ended the other one
        await change(connection)

    await rejected(forgetful, forget)
    async with database.snapshot() as connection:
        assert (await connection.execute(text("SELECT value FROM t WHERE n = 1"))).scalar_one() == 1
    await in_unit(forgetful, change)
    await forgetful.dispose()


async def test_of_two_units_that_wait_for_each_other_one_is_to_be_repeated(database: Database) -> None:
    both_have_one = asyncio.Barrier(2)

    async def change_both(connection: AsyncConnection, first: int) -> None:
        await connection.execute(text("SET LOCAL deadlock_timeout = '20ms'"))
        await change(connection, first)
        await both_have_one.wait()
        await change(connection, 3 - first)

    ended = await asyncio.gather(
        *(in_unit(database, lambda connection, n=n: change_both(connection, n)) for n in (1, 2)),  # type: ignore[misc]
        return_exceptions=True,
    )
    (failed,) = [error for error in ended if error is not None]
    assert isinstance(failed, StorageUnavailableError)
    assert "deadlock" in str(failed)


async def test_a_unit_without_a_free_connection_in_time_is_to_come_again(
    new_postgresql_url: NewDatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_module, "FREE_CONNECTION_MAX_S", 0.05)
    database = await opened(new_postgresql_url("x"), pool_size=1)
    async with database.writing():
        assert "the database does not answer" in await rejected(database, change)
    await in_unit(database, change)
    await database.dispose()


async def test_a_mistake_in_a_statement_is_no_lack_of_the_database(database: Database) -> None:
    for mistake in ("SELECT nothing FROM nowhere", "SELECT 1 / 0", "this is not SQL"):
        with pytest.raises(DBAPIError):
            await in_unit(database, lambda connection, sql=mistake: connection.execute(text(sql)))  # type: ignore[misc]
    await in_unit(database, change)


# ------------------------------------------------------------------------------------------------------- sessions


async def test_a_session_that_an_operator_ends_costs_its_unit_and_no_other(database: Database) -> None:
    async def lose_the_session(connection: AsyncConnection) -> None:
        await end_session(database, (await connection.execute(OWN_PID)).scalar_one())
        await change(connection)

    await rejected(database, lose_the_session)
    for _ in range(3):
        await in_unit(database, change)


async def test_a_session_that_ends_before_the_commit_leaves_nothing(database: Database) -> None:
    async def lose_the_commit(connection: AsyncConnection) -> None:
        pid = (await connection.execute(OWN_PID)).scalar_one()
        await change(connection)
        await end_session(database, pid)

    await rejected(database, lose_the_commit)
    async with database.snapshot() as connection:
        assert (await connection.execute(text("SELECT sum(value) FROM t"))).scalar_one() == 0


async def test_idle_sessions_that_were_ended_are_replaced_unnoticed(database: Database) -> None:
    async with database.snapshot() as one, database.snapshot() as other:
        pids = [(await connection.execute(OWN_PID)).scalar_one() for connection in (one, other)]
    async with database.snapshot() as connection:
        used = (await connection.execute(OWN_PID)).scalar_one()
    (idle,) = set(pids) - {used}
    await end_session(database, idle)
    async with database.snapshot() as one, database.snapshot() as other:
        now = [(await connection.execute(OWN_PID)).scalar_one() for connection in (one, other)]
    assert idle not in now


async def test_a_reading_unit_cannot_write(database: Database) -> None:
    async with database.snapshot() as connection:
        with pytest.raises(DBAPIError, match="read-only transaction"):
            await change(connection)
    await in_unit(database, change)


async def test_every_session_says_how_long_it_waits(database: Database) -> None:
    async with database.writing() as connection:
        found = {
            name: (await connection.execute(text(f"SHOW {name}"))).scalar_one()
            for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
        }
    assert found == {"lock_timeout": "2s", "statement_timeout": "5s", "idle_in_transaction_session_timeout": "10s"}


async def test_migrating_is_for_one_at_a_time_and_has_all_the_time_it_needs(database: Database) -> None:
    async def migrate() -> str:
        async with database.migrating() as connection:
            value: str = (await connection.execute(text("SHOW statement_timeout"))).scalar_one()
        return value

    async def waiting() -> int:
        async with database.snapshot() as connection:
            return int((await connection.execute(WAITING)).scalar_one())

    async with database.migrating() as connection:
        await connection.execute(text("CREATE TABLE new (n INTEGER)"))
        second = asyncio.create_task(migrate())
        while not await waiting():
            assert not second.done()
        await connection.commit()
    assert await second == "0"


async def test_a_migration_may_alter_a_table_whose_references_are_checked_late(database: Database) -> None:
    async with database.migrating() as connection:
        for statement in (
            "CREATE TABLE late (n INTEGER REFERENCES t (n) DEFERRABLE INITIALLY DEFERRED)",
            "INSERT INTO late VALUES (1)",
            "ALTER TABLE late ADD COLUMN more INTEGER",
            "INSERT INTO late VALUES (2)",
            "DROP TABLE late",
        ):
            await connection.execute(text(statement))
        await connection.commit()


# ------------------------------------------------------------------------------------------------ the server itself


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that a test may do anything to, as long as it runs in the end."""
    with PostgresServer() as server:
        yield server


async def test_after_a_restart_of_the_server_the_first_unit_succeeds(server: PostgresServer) -> None:
    database = await opened(server.create_database("restarted"))
    for end in (server.kill, server.stop):
        await asyncio.gather(*(in_unit(database, change) for _ in range(5)))
        await asyncio.to_thread(end)
        assert "Connect call failed" in await rejected(database, change)
        assert "Connect call failed" in await database.health()
        await asyncio.to_thread(server.start)
        await asyncio.gather(*(in_unit(database, change) for _ in range(5)))
    async with database.snapshot() as connection:
        assert (await connection.execute(text("SELECT sum(value) FROM t"))).scalar_one() == 20
    await database.dispose()


async def test_a_server_that_says_nothing_is_given_up_and_used_again_when_it_speaks(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_module, "ANSWER_MAX_S", 0.3)
    monkeypatch.setattr(postgresql_module, "CONNECT_MAX_S", 0.3)
    database = await opened(server.create_database("paused"))
    server.pause()
    try:
        assert "it takes too long" in await rejected(database, change)  # on the connection that is there
        assert "it takes too long" in await rejected(database, change)  # no other one can be opened
    finally:
        server.resume()
    await in_unit(database, change)
    server.pause()
    await database.dispose()  # which does not wait for it
    server.resume()


async def test_a_database_that_is_not_there_is_reported_as_unavailable(server: PostgresServer) -> None:
    database = Database(server.url("nowhere"))
    assert 'database "nowhere" does not exist' in await rejected(database, change)
    assert 'database "nowhere" does not exist' in await database.health()
    await database.dispose()


async def test_a_unit_costs_its_statements_and_a_begin_and_an_end(server: PostgresServer) -> None:
    """Each is a round trip: more of them is what makes an order slow."""
    url = server.create_database("counted")
    await (await opened(url)).dispose()
    server.run_sql("counted", "ALTER DATABASE counted SET log_statement = 'all'")
    database = Database(url)
    log = server.folder / "log"
    for _ in range(2):  # the first one opens the connection and prepares the statements
        logged_before = len(log.read_text())
        await in_unit(database, change)
        async with database.snapshot() as connection:
            await connection.execute(COUNT)
        async with database.autocommit() as connection:
            await connection.execute(COUNT)
    said = log.read_text()[logged_before:]
    await database.dispose()
    statements = [found[1] for found in re.finditer(r"(?:statement|execute \w+): (.*)", said)]
    assert [statement.partition(";")[0] for statement in statements] == [
        "BEGIN ISOLATION LEVEL READ COMMITTED",
        "UPDATE t SET value = value + 1 WHERE n = $1",
        "COMMIT",
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        "SELECT count(*) FROM t",
        "ROLLBACK",
        "SELECT count(*) FROM t",
    ]


@pytest.mark.processes
def test_the_server_ends_with_the_process_that_started_it_however_that_dies() -> None:
    code = (
        "from servicekit.testing.postgresql import PostgresServer\n"
        "server = PostgresServer()\nserver.start()\nprint(server.pid, server.folder, flush=True)\ninput()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().decode().split()
        server = psutil.Process(int(pid))
        leash = next(one for one in psutil.process_iter() if _has_argument(one, folder))
        owner.kill()
    assert psutil.wait_procs([server, leash], timeout=20)[1] == []
    assert not Path(folder).exists()


def _has_argument(process: psutil.Process, text: str) -> bool:
    with suppress(psutil.Error):
        return text in process.cmdline()
    return False
