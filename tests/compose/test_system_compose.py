"""docker-compose.yml from nothing to a shop that works, and to nothing again; the README's first command."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from compose_hardening import SECRETS_FOLDER, kernel_violations, violations
from compose_images import Images
from compose_stack import ONE_SHOT, ORDERS, REVISION, ROOT, Stack, project_name, variables
from compose_story import eventually, story, whole_trace
from docker_engine import cache_folder, engine
from order_lives import CLOSED_ORDER, REFUNDED_ORDER

from telemetry.trace_tree import trace_tree

pytestmark = [pytest.mark.needs("docker"), pytest.mark.timeout(3_000)]

LOCKS = ROOT / "deploy" / "docker" / "requirements"
PARTS = {"queue": "namesrv-a", "shop": "orders"}  # and a service of each
READY_TIMEOUT_S = 60.0
# Run in a container: each module of ours but those for tests.
IMPORT_EVERYTHING = """
import importlib, pkgutil, site
folders = [path for path in site.getsitepackages() if path.startswith("/venv")]
skipped = ("testing", "pytest_plugin", "embedded", "migrations", "__main__")
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not any(part.startswith(skipped) for part in module.name.split(".")):
            importlib.import_module(module.name)
"""
MODULES = {
    "queue": ["mq_namesrv", "mq_broker", "mqadmin", "mqproto", "mqremoting", "mqfilter", "telemetry"],
    "shop": ["orders", "payments", "sandbox_gateway", "servicekit", "mqclient", "telemetry"],
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """All healthy; nothing was done by hand but what has to be without a registry of images."""
    with engine(cache_folder()) as environment:
        images = Images(environment).provide()
        stack = Stack(project_name(), {**environment, **variables(images)})
        try:
            stack.up()
            yield stack
        finally:
            stack.down()
            stack.docker("image", "prune", "--force", "--filter", "until=72h")


@pytest.mark.mechanism("U2")
def test_everything_is_healthy_and_every_port_is_the_machines_own(stack: Stack) -> None:
    assert set(stack.containers()) == {
        *("namesrv-a", "namesrv-b", "broker-a", "broker-a-s", "postgres", "gateway", "payments", "orders"),
        *("otel-collector", "jaeger", ONE_SHOT),
    }
    assert stack.unhealthy() == []


@pytest.mark.mechanism("U2", "U6")
def test_an_order_is_paid_one_closes_by_itself_and_money_goes_back(
    stack: Stack, record_property: Callable[[str, object], None]
) -> None:
    async def tell() -> str:
        async with story(stack.badges()) as told:
            await told.stock_up()
            bought, left, late = await told.place(1), await told.place(2), await told.place(3)
            paid, closed, given_back = await asyncio.gather(told.paid(bought), told.closed(left), told.given_back(late))
            assert paid.payment_id is not None
            assert closed.closed_at_ms is not None
            assert closed.closed_at_ms >= left.expires_at_ms
            assert given_back == "REFUNDED"
            assert await told.stock() == (99, 0, 1)
            await whole_trace(await told.trace_id(late), REFUNDED_ORDER)
            return trace_tree(await whole_trace(await told.trace_id(left), CLOSED_ORDER))

    tree = asyncio.run(tell())
    folder = ROOT / ".compose"
    folder.mkdir(exist_ok=True)
    (folder / "closed-order-trace.txt").write_text(tree + "\n", encoding="utf-8")
    images = stack.containers()
    record_property("figure", f"traces are kept by {images['jaeger']['Config']['Image']}")


@pytest.mark.mechanism("U2")
def test_no_container_may_do_more_than_it_has_to(stack: Stack) -> None:
    containers = stack.containers()
    broken = [sentence for service, one in containers.items() for sentence in violations(service, one)]
    running = {service: one["State"]["Pid"] for service, one in containers.items() if service != ONE_SHOT}
    broken += [sentence for service, pid in running.items() for sentence in kernel_violations(service, pid)]
    assert broken == []


def test_secrets_are_in_their_volumes_and_nowhere_else(stack: Stack) -> None:
    secrets: set[str] = set()
    for service in ("orders", "payments", "gateway", "postgres"):
        texts = stack.compose("exec", "-T", service, "sh", "-c", f"cat {SECRETS_FOLDER}/*").split()
        secrets |= {part for text in texts for part in re.findall("[0-9a-f]{32,}", text)}
    assert len(secrets) == 7  # a signing key, an API key, a webhook's, and four passwords
    containers = stack.containers()
    images = sorted({one["Config"]["Image"] for one in containers.values()})
    shown = {
        **{f"container of {service}": json.dumps(one) for service, one in containers.items()},
        **{f"image {image}": stack.docker("image", "inspect", image) for image in images},
        **{f"history of {image}": stack.docker("history", "--no-trunc", image) for image in images},
        **{f"log of {service}": stack.docker("logs", one["Id"]) for service, one in containers.items()},
    }
    assert [where for where, text in shown.items() if any(secret in text for secret in secrets)] == []
    made = stack.compose("exec", "-T", "gateway", "ls", SECRETS_FOLDER).split()
    assert made == ["database-url", "gateway-api-key", "webhook-secret"]  # what it needs, and not the shop's keys


def test_only_those_with_a_database_reach_the_server_and_each_only_its_own(stack: Stack) -> None:
    ask = "import socket, sys; socket.create_connection((sys.argv[1], 5432), 3)"
    with pytest.raises(subprocess.CalledProcessError):
        stack.compose("exec", "-T", "broker-a", "python", "-c", ask, "postgres")
    stack.compose("exec", "-T", "orders", "python", "-c", ask, "postgres")
    others = (
        "import asyncio, asyncpg, pathlib; url = pathlib.Path('/run/hourglass/database-url').read_text().strip();"
        "asyncio.run(asyncpg.connect(url.replace('+asyncpg', '').rpartition('/')[0] + '/payments'))"
    )
    with pytest.raises(subprocess.CalledProcessError) as rejected:
        stack.compose("exec", "-T", "orders", "python", "-c", others)
    assert "permission denied for database" in rejected.value.stderr


@pytest.mark.parametrize("part", PARTS)
def test_an_image_has_what_its_lock_names_and_can_import_all_of_it(stack: Stack, part: str) -> None:
    modules = ["exec", "-T", PARTS[part], "python", "-c", "import sys\n" + IMPORT_EVERYTHING, *MODULES[part]]
    stack.compose(*modules)
    listing = "import importlib.metadata as m; print(*(d.name.lower().replace('_', '-') for d in m.distributions()))"
    installed = stack.compose("exec", "-T", PARTS[part], "python", "-I", "-c", listing).split()
    theirs = {name for name in installed if not name.startswith("hourglass-")}
    locked = set(re.findall(r"^([a-z0-9-]+)==", (LOCKS / f"{part}.lock").read_text(), re.MULTILINE))
    assert locked <= theirs
    assert theirs & {"locust", "sphinx", "pytest", "mypy", "ruff", "playwright", "hypothesis"} == set()


@pytest.mark.parametrize("part", PARTS)
def test_an_image_has_a_bill_of_materials(stack: Stack, part: str, tmp_path: Path) -> None:
    file = tmp_path / f"{part}.cdx.json"
    command = [sys.executable, str(ROOT / "deploy" / "docker" / "sbom.py"), f"hourglass-{part}:0.1.0", str(file)]
    subprocess.run(command, env={**stack.environment}, check=True, timeout=120)
    bill = json.loads(file.read_text())
    listed = {one["name"].lower().replace("_", "-"): one["version"] for one in bill["components"]}
    pins = re.findall(r"^([a-z0-9-]+)==([^\s;]+)", (LOCKS / f"{part}.lock").read_text(), re.MULTILINE)
    assert bill["bomFormat"] == "CycloneDX"
    assert {name: listed.get(name) for name, _ in pins} == dict(pins)


@pytest.mark.parametrize("part", PARTS)
def test_an_image_says_of_which_commit_it_is(stack: Stack, part: str) -> None:
    (image,) = json.loads(stack.docker("image", "inspect", f"hourglass-{part}:0.1.0"))
    assert image["Config"]["Labels"]["org.opencontainers.image.revision"] == REVISION


def test_an_operators_token_is_made_where_the_keys_are(stack: Stack) -> None:
    make = "python -m servicekit.token --keys-file /run/hourglass/auth-keys --subject op --role operator"
    token = stack.compose("exec", "-T", "orders", *make.split()).strip()
    answer = httpx.get(f"{ORDERS}/statistics", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200


def test_the_shop_goes_on_without_collector_and_jaeger_and_traces_outlive_them(stack: Stack) -> None:
    async def traced() -> str:
        async with story(stack.badges()) as told:
            await told.stock_up()
            left = await told.place()
            await told.closed(left)
            trace_id = await told.trace_id(left)
            await whole_trace(trace_id, CLOSED_ORDER)
            return trace_id

    before = asyncio.run(traced())
    stack.compose("stop", "otel-collector", "jaeger")

    async def tell() -> None:
        async with story(stack.badges()) as told:
            await told.stock_up()
            bought, left = await told.place(), await told.place()
            await asyncio.gather(told.paid(bought), told.closed(left))

    asyncio.run(tell())
    assert stack.unhealthy() == ["jaeger", "otel-collector"]
    stack.compose("start", "otel-collector", "jaeger")
    stack.wait(lambda: stack.unhealthy() == [], READY_TIMEOUT_S, "they are back")
    asyncio.run(whole_trace(before, CLOSED_ORDER))


def test_without_its_master_the_shop_is_read_and_goes_on_when_it_is_back(stack: Stack) -> None:
    async def tell() -> None:
        badges = stack.badges()
        async with story(badges) as told:
            await told.stock_up()
            before = await told.place()
            stack.compose("kill", "broker-a")

            async def is_rejected() -> bool:
                async with httpx.AsyncClient(timeout=10) as client:
                    return (await client.get(f"{ORDERS}/health/ready")).status_code == 503

            await eventually(is_rejected, "orders says that the queue is away")
            assert (await told.shop.order(before.order_id)).order_id == before.order_id
            assert sum(await told.stock()) == 100
            assert "broker-a-s" not in stack.unhealthy()  # a replica keeps what is there
            await asyncio.sleep(max(0.0, before.expires_at_ms / 1000 - time.time()))  # closes late, and only once
            stack.compose("start", "broker-a")
            after = await told.place()
            await asyncio.gather(told.closed(before), told.closed(after))
            assert await told.stock() == (100, 0, 0)

    asyncio.run(tell())
    stack.wait(lambda: stack.unhealthy() == [], READY_TIMEOUT_S, "all are healthy again")


def test_what_is_stopped_goes_on_where_it_was(stack: Stack) -> None:
    async def placed() -> str:
        async with story(stack.badges()) as told:
            await told.stock_up()
            return (await told.paid(await told.place())).order_id

    order_id = asyncio.run(placed())
    began = time.monotonic()
    stack.compose("stop", timeout_s=120)
    assert time.monotonic() - began < 100  # nothing was killed after its grace period: these are its exit codes
    codes = {service: one["State"]["ExitCode"] for service, one in stack.containers().items()}
    assert {service: code for service, code in codes.items() if code} == {}
    stack.start()

    async def found() -> str:
        async with story(stack.badges()) as told:
            return (await told.shop.order(order_id)).status

    assert asyncio.run(found()) == "AWAITING_SHIPMENT"


@pytest.mark.mechanism("U2")
def test_down_leaves_nothing(stack: Stack) -> None:
    stack.down()
    assert [stack.left("ps", "--all"), stack.left("volume", "ls"), stack.left("network", "ls")] == [[], [], []]
