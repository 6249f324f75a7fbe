"""The health check of a queue server for container runtimes: `python -m mqproto.health HOST:PORT [SERVICE]`.

Prints the server's status by gRPC's health protocol, in one sentence. Exit code 0 when it says SERVING, 1 when it says
something else or nothing, 2 for bad arguments. It is started again and again, so it imports gRPC and nothing more: the
two messages of the protocol have one field each, and are written and read by hand.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read on import; `main` prints one sentence instead

import grpc

from mqproto.names import Address, parse_address

METHOD = "/grpc.health.v1.Health/Check"
TIMEOUT_S = 2.0
SERVICE_BYTES_MAX = 127  # of which the length is one byte
EXIT_SERVING, EXIT_NOT_SERVING = 0, 1

_STATUSES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
_NAME_FIELD, _STATUS_FIELD = b"\x0a", b"\x08"  # both have the number 1: of type string, of type enum
# A proxy that the environment names leads out of the container, never to the server in it.
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))


def encode_request(service: str) -> bytes:
    """A HealthCheckRequest. Raises ValueError when the name is too long."""
    name = service.encode()
    if len(name) > SERVICE_BYTES_MAX:
        raise ValueError(f"the name of a service has {len(name)} bytes; at most {SERVICE_BYTES_MAX} are allowed")
    return _NAME_FIELD + bytes([len(name)]) + name if name else b""


def decode_response(data: bytes) -> str:
    """The status that a HealthCheckResponse tells, by its name; UNKNOWN when it tells none."""
    number = data[1] if len(data) > 1 and data[:1] == _STATUS_FIELD else 0
    return _STATUSES.get(number, f"status {number}")


def check(address: Address, service: str = "", timeout_s: float = TIMEOUT_S) -> tuple[bool, str]:
    """Whether the server at `address` says SERVING for this service, "" being all of it, and a sentence about it."""
    of = f"{service} at {address}" if service else str(address)
    try:
        status = decode_response(_ask(address, encode_request(service), timeout_s))
    except grpc.RpcError as error:
        return False, f"{of} is not serving: {_reason(error, timeout_s)}"
    return status == "SERVING", f"{of} is serving" if status == "SERVING" else f"{of} is not serving: it says {status}"


def _ask(address: Address, request: bytes, timeout_s: float) -> bytes:
    with grpc.insecure_channel(str(address), options=_OPTIONS) as channel:
        call = channel.unary_unary(METHOD, request_serializer=bytes, response_deserializer=bytes)
        return call(request, timeout=timeout_s, wait_for_ready=False)


def _reason(error: grpc.RpcError, timeout_s: float) -> str:
    """Why there was no answer; every error of a call on a channel tells code and details."""
    code = error.code()
    if code is grpc.StatusCode.NOT_FOUND:
        return "the server knows no such service"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "the server does not speak gRPC's health protocol"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {timeout_s:g} s"
    return f"no answer: {error.details()}"


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _service(text: str) -> str:
    try:
        encode_request(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 60:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds above 0 and up to 60")
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask once; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m mqproto.health", description="Whether a server of the queue is serving."
    )
    parser.add_argument("address", type=_address, metavar="HOST:PORT", help="where the server is reached")
    parser.add_argument(
        "service", type=_service, nargs="?", default="", metavar="SERVICE", help="a service of it; all of it by default"
    )
    parser.add_argument(
        "--timeout", type=_timeout, default=TIMEOUT_S, metavar="SECONDS", help="how long to wait (default: %(default)g)"
    )
    options = parser.parse_args(arguments)
    is_serving, sentence = check(options.address, options.service, options.timeout)
    print(sentence)
    return EXIT_SERVING if is_serving else EXIT_NOT_SERVING


if __name__ == "__main__":
    sys.exit(main())
