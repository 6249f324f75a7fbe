"""The name server as its own process: it starts, serves, stops when asked, and says in one sentence why it cannot."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

COMMAND = [sys.executable, "-m", "mq_namesrv"]

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_serves_and_stops_within_5_seconds_with_exit_code_0(number: signal.Signals) -> None:
    with subprocess.Popen([*COMMAND, "listenPort=0"], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = json.loads(process.stderr.readline())
            where = f"{line['address']}, for frames on {line['frames_address']}"
            assert line["event"] == f"the name server listens on {where}"
            with grpc.insecure_channel(line["address"]) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                request = health_pb2.HealthCheckRequest(service="hourglass.mq.v1.NameService")
                status = health.Check(request, timeout=10, wait_for_ready=True).status
            assert status == health_pb2.HealthCheckResponse.SERVING

            begin = time.monotonic()
            process.send_signal(number)
            assert process.wait(timeout=10) == 0
            assert time.monotonic() - begin < 5
        finally:
            process.kill()


def test_port_in_use_is_one_sentence_and_exit_code_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = subprocess.run([*COMMAND, f"listenPort={port}"], capture_output=True, text=True, timeout=30, check=False)
    assert run.returncode == 1
    reason = "the port is in use, or the address is not one of this machine"
    assert run.stderr == f"mq-namesrv: cannot listen on 127.0.0.1:{port}: {reason}\n"


def test_bad_configuration_is_one_sentence_and_exit_code_2() -> None:
    run = subprocess.run([*COMMAND, "listenPort=x"], capture_output=True, text=True, timeout=30, check=False)
    assert run.returncode == 2
    assert run.stderr == "mq-namesrv: listenPort='x' is not a whole number\n"
