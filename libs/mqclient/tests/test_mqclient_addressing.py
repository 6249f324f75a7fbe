"""Where the addresses of the name servers come from: the URL, the environment, an HTTP server, the DNS.

Mechanism L6.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest

from mqclient import IllegalArgumentError, MQClientError, NoRouteError, UnknownTransportError
from mqclient.transport import NameServerSource, open_transport
from osenv import until


@asynccontextmanager
async def http_server(answer: bytes | None, *, requests: list[bytes] | None = None) -> AsyncIterator[str]:
    """Gives `answer` to every request, None for never; yields its `host:port`."""
    hanging = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if requests is not None:
            requests.append(request)
        if answer is None:
            await hanging.wait()
        else:
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        hanging.set()
        server.close()
        await server.wait_closed()


def answer(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def source_of(url: str) -> NameServerSource:
    source = open_transport(url).name_server_source
    assert source is not None
    return source


def look_up_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "look-up" in thread.name]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"one:9876", ("one:9876",)),
        (b"one:9876;two:9877", ("one:9876", "two:9877")),
        (b"  one:9876 ; two:9877;\r\nand a second line", ("one:9876", "two:9877")),
    ],
)
async def test_an_http_server_tells_the_name_servers_in_its_first_line(body: bytes, expected: tuple[str, ...]) -> None:
    requests: list[bytes] = []
    async with http_server(answer(body), requests=requests) as address:
        assert await source_of(f"mq+http://{address}/rocketmq/nsaddr?unit=a").look_up() == expected
    assert requests[0].startswith(b"GET /rocketmq/nsaddr?unit=a HTTP/1.1\r\n")
    assert f"Host: {address}\r\n".encode() in requests[0]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (answer(b""), "empty"),
        (answer(b"\r\n \r\n"), "empty"),
        (answer(b"<html>sign in</html>"), "not an address"),
        (answer(b"\xff\xfe"), "not an address"),
        (answer(b"one:9876", "404 Not Found"), "404 Not Found"),
        (answer(b"one:9876", "500 Oops"), "500 Oops"),
        (answer(b"", "302 Found\r\nLocation: http://127.0.0.1:1/"), "302 Found"),
        (b"this is no HTTP\r\n\r\n", "did not tell"),
        (b"", "did not tell"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\none:98", "did not tell"),
    ],
)
async def test_an_http_answer_that_is_empty_or_broken_is_an_error(reply: bytes, reason: str) -> None:
    async with http_server(reply) as address:
        with pytest.raises(NoRouteError, match=reason):
            await source_of(f"mq+http://{address}/nsaddr").look_up()


async def test_no_server_behind_the_url_is_an_error() -> None:
    async with http_server(b"") as address:
        pass
    with pytest.raises(NoRouteError, match=address):
        await source_of(f"mq+http://{address}/nsaddr").look_up()


async def test_a_look_up_that_is_cancelled_leaves_no_thread_and_no_socket() -> None:
    process = psutil.Process()
    requests: list[bytes] = []
    async with http_server(None, requests=requests) as address:
        looking = asyncio.create_task(source_of(f"mq+http://{address}/nsaddr").look_up())
        await until(lambda: len(requests) == 1)
        assert len(look_up_threads()) == 1
        looking.cancel()
        await asyncio.wait([looking])
        assert looking.cancelled()
        port = int(address.rpartition(":")[2])
        await until(lambda: not look_up_threads())
        await until(lambda: not any(getattr(one.raddr, "port", 0) == port for one in process.net_connections("tcp")))


async def test_every_a_record_is_a_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def getaddrinfo(*arguments: Any, **options: Any) -> list[Any]:
        asked.append((arguments, options))
        ips = ("10.0.0.2", "10.0.0.1", "10.0.0.2")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 0)) for ip in ips]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert await source_of("mq+dns://namesrv.shop.svc:9876").look_up() == ("10.0.0.1:9876", "10.0.0.2:9876")
    ((arguments, options),) = asked
    assert arguments[0] == "namesrv.shop.svc"
    assert options["family"] == socket.AF_INET
    await until(lambda: not look_up_threads())


async def test_a_name_without_an_a_record_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(NoRouteError, match=r"nowhere.*Name or service not known"):
        await source_of("mq+dns://nowhere:9876").look_up()


async def test_the_resolver_of_this_machine_is_asked() -> None:
    assert await source_of("mq+dns://localhost:9876").look_up() == ("127.0.0.1:9876",)


@pytest.mark.parametrize(
    ("url", "kind", "reason"),
    [
        ("mq+http://", IllegalArgumentError, "mq\\+http://host:port/path"),
        ("mq+http://host:port/path", IllegalArgumentError, "1 to 65535"),
        ("mq+http://user@host/path", IllegalArgumentError, "not an address"),
        ("mq+http://[::1]:80/path", IllegalArgumentError, "not an address"),
        ("mq+dns://", IllegalArgumentError, "mq\\+dns://name:port"),
        ("mq+dns://name", IllegalArgumentError, "mq\\+dns://name:port"),
        ("mq+dns://one:1;two:2", IllegalArgumentError, "not an address"),
        ("mq+ftp://host/path", UnknownTransportError, "there is: .*mq\\+dns, .*mq\\+http"),
    ],
)
def test_a_url_that_names_no_source_is_rejected(url: str, kind: type[MQClientError], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        open_transport(url)


def test_the_port_of_http_is_80_and_the_path_the_root() -> None:
    assert str(source_of("mq+http://host")) == "http://host:80/"


def test_the_environment_names_the_name_servers_when_the_url_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "one:9876;two:9876")
    assert open_transport("mq://").name_servers == ("one:9876", "two:9876")
    assert open_transport("mq://three:9876").name_servers == ("three:9876",)


@pytest.mark.parametrize("value", [None, "", "nonsense"])
def test_an_environment_that_names_none_is_rejected_by_its_name(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    if value is not None:
        monkeypatch.setenv("NAMESRV_ADDR", value)
    with pytest.raises(IllegalArgumentError, match=r"the environment variable NAMESRV_ADDR: .*host:port"):
        open_transport("mq://")
