"""The synchronous faces in programs of their own: they end with code 0, print nothing, and leave no thread.

Mechanism P18.

Each program talks to the fakes that this process serves over gRPC.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from mqclient.testing.loopback import Loopback, loopback_server

LIMIT_S = 40
HEAD = """
import os, sys, threading
from mqclient import ConsumeFromWhere, ConsumeStatus, IllegalStateError, Message
from mqclient.sync import SyncProducer, SyncPushConsumer

URL = sys.argv[1]

def others():
    if not any(thread.name.startswith("mqclient") for thread in threading.enumerate()):
        for thread in threading.enumerate():  # gRPC's own, which is told to end, without a wait for it
            if "_poll_wrapper" in thread.name:
                thread.join(timeout=10)
    return [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
"""


# Put before everything else of the program.
WITHOUT_POSIX = """
import builtins, os, signal, sys

MISSING_MODULES = {"fcntl", "uvloop", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "_posixsubprocess"}
MISSING_CALLS = (
    "fork", "forkpty", "register_at_fork", "getuid", "geteuid", "getgid", "getpgid", "killpg", "setsid", "statvfs",
    "pread", "pwrite", "preadv", "pwritev", "fdatasync", "posix_fallocate", "sched_getaffinity", "mkfifo", "O_CLOEXEC",
    "O_DIRECTORY", "O_NONBLOCK", "WNOHANG", "uname", "getloadavg", "sysconf", "chown", "fchmod", "nice", "wait3",
)

import asyncio, multiprocessing, subprocess, tempfile, threading  # the standard library is that of this system

for module in MISSING_MODULES:
    sys.modules[module] = None
for call in MISSING_CALLS:
    if hasattr(os, call):
        delattr(os, call)
for name in ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGALRM", "pthread_sigmask", "alarm"):
    if hasattr(signal, name):
        delattr(signal, name)
del asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler
"""
CLIENT_WITHOUT_POSIX = """
import errno
from osenv import RealDisk

came = threading.Event()

def listener(messages):
    came.set()
    return ConsumeStatus.CONSUME_SUCCESS

consumer = SyncPushConsumer("closers", URL, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
consumer.subscribe("orders")
consumer.register_message_listener(listener)
with consumer, SyncProducer("shop", URL) as producer:
    print(producer.send(Message("orders", b"x")).send_status.name)
    assert came.wait(20)
try:
    RealDisk()
except OSError as error:
    assert error.errno == errno.ENOSYS
    print(error.strerror.partition(":")[0])
print(others())
"""


async def start(folder: Path, text: str, loopback: Loopback, *, before: str = "") -> Process:
    """Start the program: `before`, HEAD and `text`."""
    program = folder / "program.py"
    program.write_text(before + HEAD + textwrap.dedent(text), encoding="utf-8")
    return await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", str(program), loopback.url, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )


async def output_of(process: Process) -> tuple[int, str, str]:
    """Exit code, standard output and standard error, when it has ended."""
    try:
        async with asyncio.timeout(LIMIT_S):
            out, error = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode or 0, out.decode(), error.decode()


async def run(folder: Path, text: str, loopback: Loopback, *, before: str = "") -> tuple[int, str, str]:
    return await output_of(await start(folder, text, loopback, before=before))


async def line_of(process: Process) -> str:
    """The next line that the program prints."""
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        return (await process.stdout.readline()).decode().strip()


async def test_a_plain_script_sends_and_consumes_and_ends(tmp_path: Path) -> None:
    async with loopback_server() as loopback:
        ended = await run(
            tmp_path,
            """
            came = threading.Event()

            def listener(messages):
                came.set()
                return ConsumeStatus.CONSUME_SUCCESS

            consumer = SyncPushConsumer("closers", URL, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
            consumer.subscribe("orders")
            consumer.register_message_listener(listener)
            with consumer, SyncProducer("shop", URL) as producer:
                print(producer.send(Message("orders", b"x")).send_status.name)
                assert came.wait(20)
            print(others())
            """,
            loopback,
        )
    assert ended == (0, "SEND_OK\n[]\n", "")


async def test_a_script_that_forgets_to_shut_down_sends_what_it_has_begun_and_ends(tmp_path: Path) -> None:
    async with loopback_server() as loopback:
        ended = await run(
            tmp_path,
            """
            class Ignored:
                def on_success(self, result): pass
                def on_exception(self, error): pass

            producer = SyncProducer("shop", URL)
            producer.start()
            producer.send(Message("orders", b"awaited"))
            producer.send_oneway(Message("orders", b"not awaited"))
            consumer = SyncPushConsumer("closers", URL)
            consumer.subscribe("orders")
            consumer.register_message_listener(lambda messages: ConsumeStatus.CONSUME_SUCCESS)
            consumer.start()
            print(len(others()) > 0)
            """,
            loopback,
        )
        assert ended == (0, "True\n", "")
        assert sorted(loopback.broker.bodies) == [b"awaited", b"not awaited"]
        assert loopback.broker.members("closers") == []


async def test_an_exception_of_the_script_ends_it_and_its_threads(tmp_path: Path) -> None:
    async with loopback_server() as loopback:
        code, out, error = await run(
            tmp_path,
            """
            try:
                with SyncProducer("shop", URL) as producer:
                    producer.send(Message("orders", b"x"))
                    raise ValueError("of the script")
            finally:
                print(others())
            """,
            loopback,
        )
    assert (code, out) == (1, "[]\n")
    assert error.splitlines()[-1] == "ValueError: of the script"
    assert error.count("Traceback") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="no process is sent SIGINT there")
async def test_ctrl_c_abandons_the_wait_and_not_the_loop(tmp_path: Path) -> None:
    async with loopback_server() as loopback:
        process = await start(
            tmp_path,
            """
            with SyncProducer("shop", URL) as producer:
                producer.send(Message("orders", b"first"))
                print("ready", flush=True)
                sys.stdin.readline()
                try:
                    producer.send(Message("orders", b"abandoned"), timeout=60)
                except KeyboardInterrupt:
                    print("interrupted", flush=True)
                sys.stdin.readline()
                print(producer.send(Message("orders", b"afterwards")).send_status.name)
            print(others())
            """,
            loopback,
        )
        assert process.stdin is not None
        assert await line_of(process) == "ready"
        loopback.broker.silent = True
        process.stdin.write(b"\n")
        async with asyncio.timeout(LIMIT_S):
            while len(loopback.broker.frames) < 2:  # noqa: ASYNC110 - a fake sets no event
                await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert await line_of(process) == "interrupted"
        loopback.broker.silent = False
        loopback.broker.answer_frame(loopback.broker.frames[1])
        process.stdin.write(b"\n")
        assert await output_of(process) == (0, "SEND_OK\n[]\n", "")
        assert sorted(loopback.broker.bodies) == [b"abandoned", b"afterwards", b"first"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
async def test_a_forked_process_is_told_that_its_parents_face_is_not_its_own(tmp_path: Path) -> None:
    async with loopback_server() as loopback:
        ended = await run(
            tmp_path,
            """
            import warnings
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: a process with threads is forked

            producer = SyncProducer("shop", URL)
            producer.start()
            producer.send(Message("orders", b"of the parent"))
            child = os.fork()
            if child == 0:
                try:
                    producer.send(Message("orders", b"of the child"))
                except IllegalStateError as error:
                    os.write(1, str(error).encode())
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            producer.send(Message("orders", b"of the parent again"))
            producer.shutdown()
            print(" goodbye")
            """,
            loopback,
            # gRPC's own fork handlers print, and at times end the child: it does not like to be forked.
            before="import os\nos.environ['GRPC_ENABLE_FORK_SUPPORT'] = '0'\n",
        )
        code, out, error = ended
        assert (code, error) == (0, "")
        assert "started before the process was forked; make a new one in the new process" in out
        assert out.endswith(" goodbye\n")  # gRPC's own thread may take a moment longer when a fork came between
        assert sorted(loopback.broker.bodies) == [b"of the parent", b"of the parent again"]


async def test_processes_that_are_forked_before_the_first_face_have_their_own(tmp_path: Path) -> None:
    async with loopback_server() as loopback:
        ended = await run(
            tmp_path,
            """
            from concurrent.futures import ProcessPoolExecutor

            def work(number):
                with SyncProducer("shop", URL) as producer:
                    producer.send(Message("orders", b"%d" % number))
                return others_of_mqclient()

            def others_of_mqclient():
                return [name for name in others() if name.startswith("mqclient")]

            if __name__ == "__main__":
                with ProcessPoolExecutor(2) as pool:
                    print([*pool.map(work, range(4))])
                with SyncProducer("shop", URL) as producer:
                    producer.send(Message("orders", b"4"))
            """,
            loopback,
        )
        assert ended == (0, "[[], [], [], []]\n", "")
        assert sorted(loopback.broker.bodies) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_client_needs_nothing_that_only_posix_has(tmp_path: Path) -> None:
    """As far as another system can be simulated: its missing modules cannot be imported, its missing calls are gone."""
    async with loopback_server() as loopback:
        ended = await run(tmp_path, CLIENT_WITHOUT_POSIX, loopback, before=WITHOUT_POSIX)
    assert ended == (0, "SEND_OK\nthe broker's store runs on POSIX systems only\n[]\n", "")
