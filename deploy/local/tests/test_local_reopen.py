"""What a demonstration leaves behind, and opening it again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hourglass_local.__main__ import EXIT_USAGE, main
from hourglass_local.cluster import Cluster
from hourglass_local.cluster_shop import with_payment_window
from hourglass_local.left import (
    LEFT_FILE,
    FolderError,
    Left,
    LevelLateness,
    NothingLeftError,
    empty_folder,
    measured_lateness,
    placeholders,
    read_left,
    reopened,
    run_reopened,
)
from mqclient import Admin, Message, Producer

LEFT = Left(
    source="abc",
    brokers=["broker-a"],
    settings={"messageDelayLevel": with_payment_window("10s"), "mapedFileSizeCommitLog": "65536"},
    databases={"orders": "orders.db"},
    lateness_ms_by_level={"16": LevelLateness(40, 1, 2, 3)},
)


def left_in(folder: Path, left: Left = LEFT) -> Path:
    (folder / "broker-a-store").mkdir()
    left.write(folder)
    return folder


def test_what_was_left_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_left(left_in(tmp_path)) == LEFT


def test_placeholders_name_the_queue_and_the_databases_that_were_left(tmp_path: Path) -> None:
    assert placeholders(tmp_path, LEFT, "127.0.0.1:9876") == {
        "{namesrv}": "127.0.0.1:9876",
        "{source}": "abc",
        "{orders}": f"sqlite+aiosqlite:///{tmp_path}/orders.db",
        "{payments}": "",
        "{lateness}": str(tmp_path / LEFT_FILE),
    }


def test_folder_where_nothing_was_left_is_rejected_by_name(tmp_path: Path) -> None:
    with pytest.raises(NothingLeftError, match=r"nowhere is not there; `make demo` or `make load`"):
        read_left(tmp_path / "nowhere")
    with pytest.raises(NothingLeftError, match=r"has no left\.json"):
        read_left(tmp_path)
    LEFT.write(tmp_path)
    with pytest.raises(NothingLeftError, match="has no broker-a-store any more"):
        read_left(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"source": "x"}', '{"lateness_ms_by_level": {"16": {}}}'])
def test_damaged_file_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / LEFT_FILE).write_text(text)
    with pytest.raises(NothingLeftError, match="cannot be read"):
        read_left(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(["--folder", "{nowhere}", "--", "true"], "is not there"), (["--folder", "{nowhere}"], "needs a command")],
)
def test_reopen_that_cannot_begin_ends_with_the_code_of_wrong_usage(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reopen", *(part.format(nowhere=tmp_path / "nowhere") for part in arguments)]) == EXIT_USAGE
    assert sentence in capsys.readouterr().err


async def test_folder_that_a_demonstration_uses_is_not_opened(tmp_path: Path) -> None:
    with empty_folder(tmp_path / "demo"):
        left_in(tmp_path / "demo")
        with pytest.raises(FolderError, match="is being used by another demonstration"):
            await run_reopened(tmp_path / "demo", ["true"])


@pytest.mark.processes
async def test_command_finds_the_messages_that_were_left_and_changes_no_byte_of_the_log(tmp_path: Path) -> None:
    with empty_folder(tmp_path / "demo"):
        async with Cluster(tmp_path / "demo", orders=False, delay_levels=with_payment_window("1s")) as cluster:
            async with Producer("tellers", cluster.url) as producer:
                await producer.send(Message("told", b"once upon a time"))
                assert await measured_lateness(cluster) == {}
                await producer.send(Message("told", b"and they lived", delay_level=16))
            left = Left.of(cluster)
            assert (await measured_lateness(cluster))["16"].delivered == 1  # it waits until nothing waits any more
        left.write(tmp_path / "demo")
    log = next((tmp_path / "demo/broker-a-store/commitlog").iterdir())
    before = log.read_bytes()
    async with reopened(tmp_path / "demo") as (address, processes), Admin(f"mq://{address}") as admin:
        (status,) = await admin.broker_statuses()
        assert sum(queue.max_offset for queue in await admin.topic_stats("told")) == 2
        levels = {level.level: level.delay_ms for level in status.delay_levels}
        assert levels[16] == 1_000
    assert not any(process.running or process.was_killed_to_stop for process in processes)
    assert log.read_bytes() == before
    said = tmp_path / "said.json"
    script = "import json, sys; json.dump(sys.argv[2:], open(sys.argv[1], 'w')); sys.exit(7)"
    command = [sys.executable, "-c", script, str(said), "{namesrv}", "{source}"]
    assert await run_reopened(tmp_path / "demo", command) == 7
    address, source = json.loads(said.read_text())
    assert (address.partition(":")[0], source) == ("127.0.0.1", left.source)
