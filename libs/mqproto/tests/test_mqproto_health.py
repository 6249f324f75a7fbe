"""The health of a server as the command tells it: a sentence and an exit code."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from mqproto.health import SERVICE_BYTES_MAX, decode_response, encode_request, main

WRITES = "example.Service/writes"
STATUS = health_pb2.HealthCheckResponse


@contextmanager
def serving(*services: object) -> Iterator[str]:
    """A server on a free port, with these health services; yields its address."""
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        for service in services:
            health_pb2_grpc.add_HealthServicer_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def servicer(**statuses: int) -> health.HealthServicer:
    """All of it, and `WRITES`, by their statuses."""
    service = health.HealthServicer()
    service.set("", statuses.get("all", STATUS.SERVING))
    service.set(WRITES, statuses.get("writes", STATUS.SERVING))
    return service


@pytest.mark.parametrize(
    ("arguments", "statuses", "code", "sentence"),
    [
        ([], {}, 0, "{address} is serving"),
        ([WRITES], {}, 0, f"{WRITES} at {{address}} is serving"),
        ([WRITES], {"writes": STATUS.NOT_SERVING}, 1, f"{WRITES} at {{address}} is not serving: it says NOT_SERVING"),
        ([], {"writes": STATUS.NOT_SERVING}, 0, "{address} is serving"),
        ([], {"all": STATUS.NOT_SERVING}, 1, "{address} is not serving: it says NOT_SERVING"),
        ([], {"all": STATUS.UNKNOWN}, 1, "{address} is not serving: it says UNKNOWN"),
        (["other"], {}, 1, "other at {address} is not serving: the server knows no such service"),
    ],
)
def test_the_status_of_each_service_is_a_sentence_and_an_exit_code(
    arguments: list[str], statuses: dict[str, int], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(servicer(**statuses)) as address:
        assert main([address, *arguments]) == code
    assert capsys.readouterr().out == sentence.format(address=address) + "\n"


def test_who_does_not_answer_is_not_serving(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as address:
        assert main([address]) == 1
    assert capsys.readouterr().out == (f"{address} is not serving: the server does not speak gRPC's health protocol\n")
    assert main([address]) == 1
    assert capsys.readouterr().out.startswith(f"{address} is not serving: no answer: ")


class Silent(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()

    def Check(self, request: object, context: object) -> object:  # noqa: N802 - gRPC's name
        self.may_answer.wait()
        return health_pb2.HealthCheckResponse(status=STATUS.SERVING)


def test_the_wait_for_an_answer_has_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    silent = Silent()
    with serving(silent) as address:
        try:
            assert main([address, "--timeout", "0.05"]) == 1
        finally:
            silent.may_answer.set()
    assert capsys.readouterr().out == f"{address} is not serving: no answer within 0.05 s\n"


def test_it_is_a_command_that_imports_no_more_than_it_needs() -> None:
    with serving(servicer(writes=STATUS.NOT_SERVING)) as address:
        command = [sys.executable, "-X", "importtime", "-m", "mqproto.health", address, WRITES]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, f"{WRITES} at {address} is not serving: it says NOT_SERVING\n")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "grpc" in imported
    assert not [name for name in imported if name.startswith(("google.protobuf", "hourglass", "mqproto.record"))]


@pytest.mark.parametrize("service", ["", "x", WRITES, "é" * 60, "x" * SERVICE_BYTES_MAX])
def test_the_request_is_what_protobuf_writes(service: str) -> None:
    assert encode_request(service) == health_pb2.HealthCheckRequest(service=service).SerializeToString()


@pytest.mark.parametrize("name", ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"])
def test_the_response_is_what_protobuf_reads(name: str) -> None:
    assert decode_response(health_pb2.HealthCheckResponse(status=name).SerializeToString()) == name


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "the following arguments are required"),
        (["localhost"], "'localhost' is not an address; write host:port"),
        (["localhost:0"], "'localhost:0' is not an address; write host:port"),
        (["localhost:1", "x" * 128], "the name of a service has 128 bytes; at most 127 are allowed"),
        (["localhost:1", "--timeout", "0"], "'0' is no time in seconds above 0 and up to 60"),
        (["localhost:1", "--timeout", "soon"], "'soon' is no time in seconds above 0 and up to 60"),
    ],
)
def test_bad_arguments_are_told_as_such(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert problem in capsys.readouterr().err
