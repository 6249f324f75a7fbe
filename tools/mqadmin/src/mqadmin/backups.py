"""backup, restore: a copy of the store of a running broker, and a store made of one, without any broker.

Invariants of a restore: the copy is only read; what does not match its description is rejected; until every file of the
store is on disk its file `version` says that it is none, so that no broker opens it.
"""

from __future__ import annotations

import errno
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from mqadmin.brokers import PANEL
from mqadmin.errors import EXIT_FAILED, say
from mqadmin.options import AsJson, NameServers
from mqadmin.output import Table, show, time_fields, time_text
from mqadmin.world import World
from mqclient.admin.backups import DESCRIPTION_NAME, BackedUpFile, BackupDescription
from mqproto.codes import PART_BYTES_MAX, VERSION_PATH
from osenv import Disk, DiskFile, replace_file
from osenv.disk import make_durable_dirs

NO_STORE_YET = b"A restore has not come to its end: this is no store. Remove the folder, and restore again.\n"

commands = typer.Typer()

OneBroker = Annotated[
    str, typer.Option("-b", "--brokerAddr", metavar="HOST:PORT", help="The broker's address or name.")
]
NewFolder = Annotated[Path, typer.Option("-d", "--directory", metavar="FOLDER", help="An empty folder, or a new one.")]
Copy = Annotated[Path, typer.Option("-d", "--directory", metavar="FOLDER", help="The folder with the copy.")]
NewStore = Annotated[
    Path, typer.Option("-s", "--storePath", metavar="FOLDER", help="An empty folder, or a new one, for the store.")
]


@commands.command("backup", rich_help_panel=PANEL)
def backup(
    context: typer.Context,
    *,
    broker: OneBroker,
    directory: NewFolder,
    name_servers: NameServers,
    as_json: AsJson = False,
) -> None:
    """Copy the store of a running broker into a folder of this machine."""
    world, folder = World.of(context), directory.absolute()
    found = world.ask(name_servers, lambda admin: admin.backup_store(broker, folder, disk=world.open_disk()))
    show({"directory": str(folder), **_fields(found)}, _table(found), as_json=as_json)


@commands.command("restore", rich_help_panel=PANEL)
def restore(context: typer.Context, *, directory: Copy, store_path: NewStore, as_json: AsJson = False) -> None:
    """Make a store from a copy, to start a broker on; needs no cluster."""
    store = store_path.absolute()
    try:
        found = Restore(World.of(context).open_disk(), directory.absolute(), store).run()
    except RestoreError as error:
        say(str(error))
        raise typer.Exit(EXIT_FAILED) from None
    show({"store_path": str(store), **_fields(found)}, _table(found), as_json=as_json)
    say(f"to check it: python -m mq_broker.tools.dump_log {store} --verify")


def _fields(found: BackupDescription) -> dict[str, Any]:
    return {
        "broker_name": found.broker_name,
        **time_fields("taken_at", found.timestamp_ms),
        "log_min_offset": found.log_min_offset,
        "log_max_offset": found.log_max_offset,
        "files": len(found.files),
        "bytes": found.size,
    }


def _table(found: BackupDescription) -> Table:
    return Table(
        ("broker", "taken at", "log begins at", "log ends at", "files", "bytes"),
        [
            (
                found.broker_name,
                time_text(found.timestamp_ms),
                found.log_min_offset,
                found.log_max_offset,
                len(found.files),
                found.size,
            )
        ],
    )


class RestoreError(Exception):
    """The copy cannot be restored, or not there; the message says why."""


@dataclass
class Restore:
    """From the folder `source` to the folder `target`, both absolute."""

    disk: Disk
    source: Path
    target: Path
    _folders: set[Path] = field(default_factory=set)

    def run(self) -> BackupDescription:
        """What was restored, durable on return. Raises RestoreError, and OSError with the path that it came from."""
        description = self._description()
        if self._names_in(self.target):
            raise RestoreError(f"{self.target} is not empty: a store is restored into an empty folder")
        version = self.target / VERSION_PATH
        self._have(self.target)
        with _named(version):
            replace_file(self.disk, version, NO_STORE_YET, keep_previous=False)
        for file in description.files:
            if file.path != VERSION_PATH:
                self._copy(file)
        for folder in sorted(self._folders):
            with _named(folder):
                self.disk.sync_dir(folder)
        content = b"".join(part for file in description.files if file.path == VERSION_PATH for part in self._read(file))
        with _named(version):
            replace_file(self.disk, version, content, keep_previous=False)
        return description

    def _description(self) -> BackupDescription:
        path = self.source / DESCRIPTION_NAME
        try:
            with self._opened(path) as file, _named(path):
                return BackupDescription.decode(file.pread(file.size(), 0))
        except FileNotFoundError:
            names = self._names_in(self.source)
            what = "holds a copy that has not come to its end" if names else "holds no copy of a store"
            raise RestoreError(f"{self.source} {what}: there is no {DESCRIPTION_NAME}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise RestoreError(f"{path} cannot be used: {error}") from error

    def _copy(self, file: BackedUpFile) -> None:
        path = self.target / file.path
        self._have(path.parent)
        with self._opened(path, create=True) as copy, _named(path):
            copy.truncate(file.full_size)
            at = 0
            for part in self._read(file):
                copy.pwrite(part, at)
                at += len(part)
            copy.sync_data()

    def _read(self, file: BackedUpFile) -> Iterator[bytes]:
        """The file of the copy in parts. Raises RestoreError, behind the last one also when it is not what it was."""
        path = self.source / file.path
        crc = 0
        try:
            with self._opened(path) as copy:
                if (size := copy.size()) != file.size:
                    raise RestoreError(f"{path} is {size} bytes long, and was {file.size}: the copy is damaged")
                for at in range(0, file.size, PART_BYTES_MAX):
                    with _named(path):
                        part = copy.pread(min(PART_BYTES_MAX, file.size - at), at)
                    crc = zlib.crc32(part, crc)
                    yield part
        except FileNotFoundError:
            raise RestoreError(f"{path} is missing: the copy is damaged") from None
        if crc != file.crc32:
            raise RestoreError(f"{path} has CRC {crc:08x}, and had {file.crc32:08x}: the copy is damaged")

    def _names_in(self, folder: Path) -> list[str]:
        with _named(folder):
            return self.disk.list_dir(folder)

    def _have(self, folder: Path) -> None:
        """Have the folder; the names in it are durable when it has been synced."""
        if folder not in self._folders:
            with _named(folder):
                make_durable_dirs(self.disk, folder)
            self._folders.add(folder)

    @contextmanager
    def _opened(self, path: Path, *, create: bool = False) -> Iterator[DiskFile]:
        with _named(path):
            file = self.disk.open(path, create=create, read_only=not create)
        try:
            yield file
        finally:
            file.close()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """An error of the disk says with which file it came."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error
