"""`hourglass dev` as a developer starts it, uses it and stops it."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from hourglass_cli import dev
from mqclient import Message, MessageQueue
from mqclient.sync import SyncAdmin, SyncProducer

pytestmark = pytest.mark.processes

COMMAND = [sys.executable, "-m", "hourglass_cli", "dev", "--port", "0", "--broker-port", "0"]
READY_MAX_S = 1.5


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """The process once it is ready, and what it says: the first word of each line, and the rest. Stopped by Ctrl-C."""
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = {}
        for line in process.stdout:
            word, _, rest = line.strip().partition(" ")
            said[word] = rest.strip()
            if "Ctrl-C" in line:
                break
        try:
            yield process, said
        finally:
            process.send_signal(signal.SIGINT)
            assert process.stdout.read() == ""
    assert process.returncode == 0


def url(said: dict[str, str]) -> str:
    return said["The"].removeprefix("queue is at ")


def bodies(at: str, topic: str) -> list[bytes]:
    with SyncAdmin(at) as admin:
        stats = admin.topic_stats(topic)
        queues: list[MessageQueue] = [one.queue for one in stats]
        return [message.body for queue in queues for message in admin.read_queue(queue)]


def test_it_is_ready_soon_and_takes_messages(record_property: Callable[[str, object], None]) -> None:
    begin = time.monotonic()
    with running() as (process, said):
        seconds = time.monotonic() - begin
        times = psutil.Process(process.pid).cpu_times()
        cpu_s = times.user + times.system
        record_property("figure", f"hourglass dev: ready in {seconds:.2f} s, of which {cpu_s:.2f} s of one core")
        assert cpu_s < READY_MAX_S  # the rest is waiting for a core, which is this machine's
        with SyncProducer("writers", url(said)) as producer:
            assert producer.send(Message("greetings", b"now")).send_status.value == "SEND_OK"
        assert bodies(url(said), "greetings") == [b"now"]
        temporary = Path(said["messages"].split()[0])
        assert (temporary / "commitlog").is_dir()
    assert not temporary.exists()


def test_a_store_that_was_named_keeps_its_messages(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with running("--store", str(store)) as (_, said), SyncProducer("writers", url(said)) as producer:
        producer.send(Message("greetings", b"kept"))
    with running("--store", str(store)) as (_, said):
        assert bodies(url(said), "greetings") == [b"kept"]
        assert said["messages"] == f"{store}   stay"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["noSuchKey=1"], "noSuchKey"),
        (["messageDelayLevel"], "'messageDelayLevel' is not of the form key=value"),
        (["--port", "70000"], "listenPort=70000: allowed are 1 to 65535"),
        (["logLevel=LOUD"], "logLevel='LOUD': allowed are"),
    ],
)
def test_a_setting_that_makes_no_sense_is_rejected(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dev.main(arguments) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--port", "--broker-port"])
def test_a_port_that_is_taken_is_named(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = subprocess.run([*COMMAND, option, str(port)], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: the port is in use" in run.stderr
    assert run.stdout == ""
