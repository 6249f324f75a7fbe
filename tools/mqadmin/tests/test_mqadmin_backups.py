"""backup and restore: a copy of a running broker, a store made of it, and what is rejected on the way."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq_broker.config import BrokerConfig
from mq_broker.embedded import EmbeddedBroker
from mq_broker.store.errors import StoreDamagedError
from mq_broker.store.layout import StoreLayout, reject_newer
from mqadmin.backups import NO_STORE_YET, Restore
from mqadmin.testing import Operator, operated
from osenv import SeededRng, SimDisk
from osenv.disk import read_file

COPY, STORE = Path("/copy"), Path("/restored")
BACKUP = ("backup", "-b", "broker-a", "-d", str(COPY))
RESTORE = ("restore", "-d", str(COPY), "-s", str(STORE))
LOG = "commitlog/00000000000000000000"


@pytest.fixture
def operator(request: pytest.FixtureRequest) -> Iterator[Operator]:
    with operated(EmbeddedBroker(request.node.name)) as one:
        one("updateTopic", "-t", "orders", "-c", "DefaultCluster")
        one("sendMessage", "-t", "orders", "-p", "first", "-k", "k1")
        one("sendMessage", "-t", "orders", "-p", "second", "-k", "k2")
        yield one


def store_below(disk: SimDisk, folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): content
        for path, content in disk.contents().items()
        if path.is_relative_to(folder)
    }


class TestRestored:
    def test_a_broker_that_opens_it_has_the_messages(self, operator: Operator) -> None:
        backup = operator(*BACKUP)
        assert (backup.exit_code, backup.stderr) == (0, "")
        assert backup.rows[0] == ["broker", "taken at", "log begins at", "log ends at", "files", "bytes"]
        operator("sendMessage", "-t", "orders", "-p", "later", "-k", "k3")
        restore = operator(*RESTORE)
        assert (restore.exit_code, restore.stdout) == (0, backup.stdout)
        assert restore.stderr == f"mqadmin: to check it: python -m mq_broker.tools.dump_log {STORE} --verify\n"
        disk = SimDisk()
        for name, content in store_below(operator.disk, STORE).items():
            path = Path("/store") / name
            disk.make_dirs(path.parent)
            disk.open(path, create=True).pwrite(content, 0)
        with operated(EmbeddedBroker("restored", disk=disk)) as other:
            found = other("queryMsgByKey", "-t", "orders", "-k", "k1", "--json").json["messages"]
            assert [message["body"] for message in found] == ["first"]
            assert other("queryMsgByKey", "-t", "orders", "-k", "k3").exit_code == 3

    def test_files_of_the_log_have_their_full_length_again(self, operator: Operator) -> None:
        operator(*BACKUP)
        operator(*RESTORE)
        copied, restored = (read_file(operator.disk, folder / LOG) for folder in (COPY, STORE))
        assert len(copied) < 10_000
        assert restored == copied.ljust(8 * 1024 * 1024, b"\0")

    def test_whatever_a_power_cut_leaves_of_a_restore_is_whole_or_rejected(self, operator: Operator) -> None:
        operator(*BACKUP)
        disk, seen, layout = operator.disk, set[str](), StoreLayout(STORE)

        def look(_call: str, _path: Path) -> None:
            for left in disk.lost_states(SeededRng(1), samples=8):
                if left.list_dir(STORE):
                    whole = left.exists(layout.version) and read_file(left, layout.version) != NO_STORE_YET
                    seen.add("whole" if whole else "rejected")
                    if whole:
                        assert store_below(left, STORE).items() >= finished.items()
                    elif left.exists(layout.version):
                        with pytest.raises(StoreDamagedError, match="is damaged"):
                            reject_newer(left, layout)
                    else:
                        assert left.list_dir(STORE) in ([], ["version.tmp"])

        reference = disk.fork()
        Restore(reference, COPY, STORE).run()
        finished = store_below(reference, STORE)
        disk.before = look
        Restore(disk, COPY, STORE).run()
        look("end", STORE)
        assert seen == {"whole", "rejected"}


class TestRejected:
    def test_a_folder_that_holds_something(self, operator: Operator) -> None:
        assert operator(*BACKUP).exit_code == 0
        again = operator(*BACKUP)
        assert (again.exit_code, again.stderr) == (
            2,
            "mqadmin: /copy is not empty: a copy begins in an empty folder\n",
        )
        assert operator(*RESTORE).exit_code == 0
        before = operator.disk.contents()
        again = operator(*RESTORE)
        assert (again.exit_code, again.stderr) == (
            1,
            "mqadmin: /restored is not empty: a store is restored into an empty folder\n",
        )
        assert operator.disk.contents() == before

    def test_a_copy_that_has_not_come_to_its_end(self, operator: Operator) -> None:
        operator(*BACKUP)
        operator.disk.unlink(COPY / "backup.json")
        outcome = operator(*RESTORE)
        assert outcome.exit_code == 1
        assert outcome.stderr == "mqadmin: /copy holds a copy that has not come to its end: there is no backup.json\n"
        assert not operator.disk.exists(STORE)

    def test_a_folder_that_is_no_copy(self, operator: Operator) -> None:
        outcome = operator(*RESTORE)
        assert (outcome.exit_code, outcome.stderr) == (
            1,
            "mqadmin: /copy holds no copy of a store: there is no backup.json\n",
        )

    @pytest.mark.parametrize("name", [LOG, "config/topics.json", "version", "backup.json"])
    def test_a_changed_byte(self, operator: Operator, name: str) -> None:
        operator(*BACKUP)
        content = read_file(operator.disk, COPY / name)
        operator.disk.open(COPY / name).pwrite(bytes([content[20] ^ 1]), 20)
        outcome = operator(*RESTORE)
        assert outcome.exit_code == 1
        assert f"/copy/{name}" in outcome.stderr
        assert "damaged" in outcome.stderr
        assert STORE / "version" not in operator.disk.contents() or (
            read_file(operator.disk, STORE / "version") == NO_STORE_YET
        )

    @pytest.mark.parametrize(("change", "what"), [(-1, "bytes long, and was"), (1, "bytes long, and was")])
    def test_a_file_of_another_length(self, operator: Operator, change: int, what: str) -> None:
        operator(*BACKUP)
        file = operator.disk.open(COPY / LOG)
        file.truncate(file.size() + change)
        assert what in operator(*RESTORE).stderr

    def test_a_file_that_is_missing(self, operator: Operator) -> None:
        operator(*BACKUP)
        operator.disk.unlink(COPY / LOG)
        assert operator(*RESTORE).stderr == f"mqadmin: /copy/{LOG} is missing: the copy is damaged\n"

    @pytest.mark.parametrize("call", ["open", "pread", "pwrite", "truncate", "sync_data", "sync_dir", "replace"])
    def test_a_disk_that_rejects_says_where(self, operator: Operator, call: str) -> None:
        operator(*BACKUP)

        def broken(done: str, _path: Path) -> None:
            if done == call:
                raise OSError(errno.EIO, "the medium is broken")

        operator.disk.before = broken
        outcome = operator(*RESTORE)
        operator.disk.before = lambda _call, _path: None
        assert outcome.exit_code == 1
        assert outcome.stderr.startswith("mqadmin: [Errno 5] the medium is broken: '/")
        if set(operator.disk.list_dir(STORE)) - {"version.tmp"}:  # more than the beginning of the first write
            with pytest.raises(StoreDamagedError):
                reject_newer(operator.disk, BrokerConfig(store_path_root_dir=str(STORE)).store_options(1).layout)
