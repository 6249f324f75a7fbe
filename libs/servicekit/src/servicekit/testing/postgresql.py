"""A PostgreSQL server of one's own, for tests and measurements: on loopback, in a folder that goes with it.

    with PostgresServer() as server:
        url = server.create_database("orders")

It needs PostgreSQL 15 or newer, and root lets the system's user `postgres` run it, because the server rejects root. Its
one user needs no password. It ends when this process ends, however that dies.

The folder and its files: data/ (the cluster), log (what the server has said).
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from osenv.network import free_ports
from servicekit.config import POSTGRESQL_PREFIX

VERSION_MIN = 15
SYSTEM_USER = "postgres"
DEBIAN_FOLDERS = Path("/usr/lib/postgresql")
NEEDED = ("postgres", "initdb", "psql")
PROBE_MAX_S = 30


class NoPostgresError(RuntimeError):
    """PostgreSQL cannot be run on this machine; the sentence says why."""


def programs_folder() -> Path:
    """The folder of the newest PostgreSQL: on the PATH, or where Debian puts it, which is not on it.

    Raises NoPostgresError when there is none that will do.
    """
    found = shutil.which("postgres")
    folders = [Path(found).resolve().parent] if found else []
    folders += DEBIAN_FOLDERS.glob("*/bin")
    complete = [folder for folder in folders if all((folder / name).exists() for name in NEEDED)]
    if not complete:
        raise NoPostgresError(f"not installed: PostgreSQL {VERSION_MIN} or newer, with {', '.join(NEEDED)}")
    version, newest = max((_version(folder), folder) for folder in complete)
    if version < VERSION_MIN:
        raise NoPostgresError(f"PostgreSQL has to be {VERSION_MIN} or newer, and in {newest} it is {version}")
    if os.geteuid() == 0 and not _has_user():
        raise NoPostgresError(f"PostgreSQL rejects root, and there is no user {SYSTEM_USER}")
    return newest


def _version(folder: Path) -> int:
    command = [str(folder / "postgres"), "--version"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_MAX_S, check=False)  # noqa: S603
    match = re.search(r"\(PostgreSQL\) (\d+)", run.stdout)
    return int(match[1]) if match else 0


def _has_user() -> bool:
    try:
        pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        return False
    return True


USER = "hourglass"
LOOPBACK = "127.0.0.1"
START_MAX_S = 30.0
STOP_MAX_S = 15.0
LOOK_INTERVAL_S = 0.02
LOG_END_CHARACTERS = 2_000

# Nothing in a test outlives the machine: a kill -9 of the server loses nothing that the kernel has.
NOT_DURABLE: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off"}
DURABLE: Mapping[str, str] = {}

# Reads what never comes. When the process at the other end of the pipe is gone, so are the server and its folder.
_LEASH = 'read -r _; kill -QUIT "$1"; while kill -0 "$1"; do sleep 0.1; done; rm -rf -- "$2"'

_EMPTY = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "DROP SCHEMA public CASCADE",
    "CREATE SCHEMA public",
)


class PostgresServerError(RuntimeError):
    """The server, or a program of PostgreSQL's, does not do what it should; with what it said."""


class PostgresServer:
    """One server. `settings` are PostgreSQL's own. Its folder is made in `folder`, which user postgres has to be able
    to enter; else where temporary files are.

    A context manager that starts the server, and in the end stops it and removes its folder.
    """

    def __init__(self, settings: Mapping[str, str] = NOT_DURABLE, *, folder: Path | None = None) -> None:
        (self.port,) = free_ports(1)
        self._programs = programs_folder()
        self._settings = dict(settings)
        self.folder = Path(tempfile.mkdtemp(prefix="hourglass-postgresql-", dir=folder))
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            shutil.chown(self.folder, SYSTEM_USER, SYSTEM_USER)
            self._as_user = {"user": SYSTEM_USER, "group": SYSTEM_USER, "extra_groups": []}
        self._server: subprocess.Popen[bytes] | None = None
        self._leash: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()

    # ------------------------------------------------------------------------------------------------ life and death

    @property
    def is_running(self) -> bool:
        return self._server is not None and self._server.poll() is None

    @property
    def pid(self) -> int:
        """Of the first process, which has started the others. Raises PostgresServerError when it does not run."""
        if self._server is None or not self.is_running:
            raise PostgresServerError("PostgreSQL does not run")
        return self._server.pid

    def start(self) -> None:
        """Start, also after an end of any kind, and return when it takes connections. Raises PostgresServerError."""
        if self.is_running:
            raise PostgresServerError(f"PostgreSQL runs already, as process {self.pid}")
        if not (self.folder / "data").exists():
            self._initialize()
        deadline = time.monotonic() + START_MAX_S
        self._launch()
        while not self._is_ready():
            if time.monotonic() > deadline:
                self.stop()
                raise PostgresServerError(f"PostgreSQL is not ready after {START_MAX_S:g} s: {self._log_end()}")
            if not self.is_running:
                time.sleep(LOOK_INTERVAL_S)  # after a kill, what is left of the server before may still be ending
                self._launch()
            time.sleep(LOOK_INTERVAL_S)

    def stop(self) -> None:
        """Roll back what is open, write everything to the disk, and end. Harmless when it does not run."""
        if self.is_running:
            self.resume()
            os.kill(self.pid, signal.SIGINT)
            self._wait()
        self._let_go()

    def kill(self) -> None:
        """kill -9, of every process of it at once; on return all of them are gone, and their sockets closed."""
        processes = self._processes()
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # it has ended since it was listed
                process.kill()
        self._wait()
        psutil.wait_procs(processes, STOP_MAX_S)
        self._let_go()

    def pause(self) -> None:
        """Let nothing of it run until `resume`; its sockets stay open, and are silent."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def resume(self) -> None:
        """Undo `pause`."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def remove(self) -> None:
        """Stop it, and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------------------------------------------------ databases

    def url(self, database: str) -> str:
        """As a service takes it."""
        return f"{POSTGRESQL_PREFIX}{USER}@{LOOPBACK}:{self.port}/{database}"

    def create_database(self, name: str) -> str:
        """The URL of a new and empty database. Raises PostgresServerError."""
        self.run_sql("postgres", f'CREATE DATABASE "{name}"')
        return self.url(name)

    def empty_database(self, name: str) -> None:
        """End every session with the database, and drop what is in it; quicker than dropping the database itself."""
        self.run_sql(name, *_EMPTY)

    def run_sql(self, database: str, *statements: str) -> str:
        """What `psql` prints: a line for each row, `|` between the columns. Raises PostgresServerError."""
        options = [f"--command={statement}" for statement in statements]
        program = str(self._programs / "psql")
        return self._run(
            [program, "-h", LOOPBACK, "-p", str(self.port), "-U", USER, "-d", database, "-XqAt", *options], {}
        )

    # --------------------------------------------------------------------------------------------------------- inside

    def _initialize(self) -> None:
        program = str(self._programs / "initdb")
        options = ["--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C", f"--username={USER}"]
        self._run([program, f"--pgdata={self.folder / 'data'}", *options], self._as_user)

    def _launch(self) -> None:
        self._let_go()
        settings = {
            "port": str(self.port),
            "listen_addresses": LOOPBACK,
            "unix_socket_directories": "",
            "timezone": "UTC",
            **self._settings,
        }
        options = [text for name, value in settings.items() for text in ("-c", f"{name}={value}")]
        command = [str(self._programs / "postgres"), "-D", str(self.folder / "data"), *options]
        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(  # noqa: S603 - PostgreSQL's own program
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C in the terminal is not for it
                **self._as_user,
            )
        self._leash = subprocess.Popen(  # noqa: S603 - the text above
            ["/bin/sh", "-c", _LEASH, "leash", str(self._server.pid), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **self._as_user,
        )

    def _let_go(self) -> None:
        leash, self._leash = self._leash, None
        if leash is not None:
            leash.kill()
            leash.communicate()

    def _is_ready(self) -> bool:
        try:
            return self.run_sql("postgres", "SELECT 1") == "1\n"
        except PostgresServerError:
            return False

    def _processes(self) -> list[psutil.Process]:
        """The first one comes first: stopped or dead it starts no others."""
        first = psutil.Process(self.pid)
        return [first, *first.children(recursive=True)]

    def _wait(self) -> None:
        if self._server is None:
            return
        try:
            self._server.wait(STOP_MAX_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def _run(self, command: Sequence[str], as_user: Mapping[str, Any]) -> str:
        environment = {
            "PATH": os.defpath,
            "LC_ALL": "C",
            "PGCONNECT_TIMEOUT": "5",
            "PGOPTIONS": "-c client_min_messages=warning",
        }
        run: subprocess.CompletedProcess[str] = subprocess.run(  # noqa: S603 - PostgreSQL's own programs
            command,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_MAX_S,
            check=False,
            **as_user,
        )
        if run.returncode != 0:
            raise PostgresServerError(f"{Path(command[0]).name} failed: {run.stderr.strip() or run.stdout.strip()}")
        return run.stdout

    def _log_end(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-LOG_END_CHARACTERS:]
