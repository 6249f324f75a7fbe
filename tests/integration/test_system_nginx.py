"""Behind nginx as docs/guides/containers.md sets it: TLS ends there, and nginx tells visitors apart.

Four servers of one nginx stand before the shop: its own machine's proxy, two in a row, and one that is not trusted.
Visitors come from addresses of their own (127.0.0.0/8), and claim another address with every request.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from capabilities import which

from hourglass_local.cluster import Cluster
from hourglass_local.cluster_shop import ShopSettings
from hourglass_local.ports import LOOPBACK, free_ports
from hourglass_local.process import http_ready
from hourglass_local.shop import CLOSED, PENDING, Product, Shop
from hourglass_local.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs/guides/containers.md"
OUTER, UNTRUSTED = "127.0.0.3", "127.0.0.4"  # the addresses from which these proxies go on
LIMIT = 5  # requests of a visitor, within a time that no test lasts
FIRST, SECOND = "127.0.3.1", "127.0.3.2"  # visitors
START_MAX_S = ANSWER_MAX_S = 30.0
MAIN = """
daemon off; master_process off; error_log stderr; pid {folder}/nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {servers}
}}
"""

pytestmark = [pytest.mark.needs("nginx"), pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]


@dataclass(frozen=True, slots=True)
class Stage:
    """The ports of the proxies: the machine's own one, the outer one of two, and the one that is not trusted."""

    cluster: Cluster
    trust: ssl.SSLContext
    own: int
    outer: int
    untrusted: int

    def visitor(self, port: int, address: str) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(local_address=address, verify=self.trust)
        return httpx.AsyncClient(transport=transport, base_url=f"https://{LOOPBACK}:{port}", timeout=ANSWER_MAX_S)


def changed(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert text.count(old) == 1, f"docs/guides/containers.md says {old!r} {text.count(old)} times"
        text = text.replace(old, new)
    return text


def make_certificate(folder: Path) -> dict[str, str]:
    """Files for the snippet's, of a visitor at 127.0.0.1."""
    files = {
        "/etc/ssl/certs/shop.example.pem": folder / "cert.pem",
        "/etc/ssl/private/shop.example.key": folder / "key.pem",
    }
    certificate, key = files.values()
    subject = ("-subj", "/CN=shop.example", "-addext", f"subjectAltName=IP:{LOOPBACK}")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        *subject,
    ]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=60)
    return {name: str(path) for name, path in files.items()}


def servers(certificate: dict[str, str], orders_port: int, own: int, outer: int, inner: int, untrusted: int) -> str:
    """nginx's, each as the page has it, with one difference."""
    snippet, inner_lines = re.findall(r"^```nginx\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    scheme = "proxy_set_header X-Forwarded-Proto $scheme;"
    backend, listen = "http://127.0.0.1:8001;", "listen 443 ssl;"

    def with_tls(port: int, next_port: int, more: str = "") -> str:
        changes = {listen: f"listen {LOOPBACK}:{port} ssl;", backend: f"http://{LOOPBACK}:{next_port}; {more}"}
        return changed(snippet, certificate | changes)

    plain = re.sub(r"^ *ssl_certificate.*\n", "", snippet, flags=re.M)
    to_orders = f"http://{LOOPBACK}:{orders_port};"
    return "".join(
        (
            with_tls(own, orders_port),
            with_tls(outer, inner, f"proxy_bind {OUTER};"),
            changed(plain, {listen: f"listen {LOOPBACK}:{inner};", backend: to_orders, scheme: inner_lines}),
            with_tls(untrusted, orders_port, f"proxy_bind {UNTRUSTED};"),
        )
    )


@asynccontextmanager
async def nginx(folder: Path, text: str) -> AsyncIterator[asyncio.subprocess.Process]:
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder, servers=text), encoding="utf-8")
    command = [which("nginx") or "nginx", "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]
    with (folder / "nginx.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stderr=log)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("nginx")
    certificate = make_certificate(folder)
    own, outer, inner, untrusted = free_ports(4)
    settings = ShopSettings(sandbox_sign_in=True, rate_limit=f"{LIMIT}/3600")
    environment = {"ORDERS_TRUSTED_PROXIES": f"{LOOPBACK},{OUTER}"}
    async with Cluster(folder / "shop", payments=False, shop=settings, environment=environment) as cluster:
        orders_port = int(cluster.orders_url.rpartition(":")[2])
        async with nginx(folder, servers(certificate, orders_port, own, outer, inner, untrusted)) as process:
            made = Stage(cluster, ssl.create_default_context(cafile=folder / "cert.pem"), own, outer, untrusted)

            async def ready() -> bool:
                assert process.returncode is None, (folder / "nginx.log").read_text()
                async with made.visitor(outer, LOOPBACK) as http:
                    return await http_ready(http, "/health/ready")

            await eventually(ready, START_MAX_S, "orders answers through nginx")
            yield made


async def visit(stage: Stage, port: int, address: str, count: int) -> tuple[list[int], str]:
    """What so many visits are answered, and the cookie of the last one, which signs in."""
    names = itertools.count(1)

    def lies() -> dict[str, str]:
        return {"X-Forwarded-For": f"192.0.2.{next(names)}", "X-Forwarded-Proto": "http"}

    async with stage.visitor(port, address) as http:
        answers = [await http.get("/shop/session", headers=lies()) for _ in range(count - 1)]
        form = {"subject": f"buyer-{address}", "role": "buyer"}
        from_a_page = {"Origin": f"https://{LOOPBACK}:{port}"}  # as browsers do that have no Sec-Fetch-Site
        answers.append(await http.post("/shop/session/sandbox", data=form, headers=lies() | from_a_page))
        return [answer.status_code for answer in answers], answers[-1].headers.get("Set-Cookie", "")


@pytest.mark.parametrize(("place", "visitors"), [("own", "127.0.1."), ("outer", "127.0.2.")])
async def test_visitors_have_limits_and_secure_cookies_of_their_own_whatever_they_claim(
    stage: Stage, place: str, visitors: str
) -> None:
    port = getattr(stage, place)
    for address in (f"{visitors}1", f"{visitors}2"):
        answers, cookie = await visit(stage, port, address, LIMIT)
        assert answers == [200] * (LIMIT - 1) + [303]
        assert cookie.endswith("; Secure")
        assert (await visit(stage, port, address, 2))[0] == [429, 429]


async def test_visitors_of_a_proxy_that_is_not_trusted_are_one_and_their_cookies_are_not_secure(stage: Stage) -> None:
    answers, cookie = await visit(stage, stage.untrusted, FIRST, LIMIT - 1)
    assert answers == [200] * (LIMIT - 2) + [303]
    assert "Secure" not in cookie
    assert (await visit(stage, stage.untrusted, SECOND, 2))[0] == [200, 429]


@pytest.mark.parametrize("place", ["own", "outer"])
async def test_an_orders_events_arrive_while_the_answer_goes_on(stage: Stage, place: str) -> None:
    buyer_id = f"buyer-{place}"
    async with Shop(stage.cluster.orders_url, stage.cluster.badges) as shop:
        await shop.add_product(Product(f"seat-{place}", "A seat", 15_800, "CNY", 1))
        order = await shop.place_order(buyer_id, {f"seat-{place}": 1}, "k")
        bearer = {"Authorization": f"Bearer {stage.cluster.badges.buyer(buyer_id)}"}
        async with (
            asyncio.timeout(ANSWER_MAX_S),
            stage.visitor(getattr(stage, place), FIRST) as http,
            http.stream("GET", f"/orders/{order.order_id}/events", headers=bearer) as answer,
        ):
            lines = answer.aiter_lines()
            states = (line async for line in lines if line.startswith("data:"))
            assert PENDING in await anext(states)
            await shop.cancel(order)
            assert CLOSED in await anext(states)
