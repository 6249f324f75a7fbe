"""What the files of the containers say before anything runs: pins, locks, secrets, what a Dockerfile must not have."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from docker_files import DOCKER, module_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "containers.md"
DOCKERFILES = sorted(DOCKER.rglob("Dockerfile"))
DEVELOPMENT = {
    "pytest",
    "hypothesis",
    "locust",
    "sphinx",
    "mypy",
    "ruff",
    "playwright",
    "matplotlib",
    "uv",
    "grpcio-tools",
}
COMMAND_LINES = {"typer", "rich", "shellingham", "pygments", "markdown-it-py", "mdurl"}
# Each is put together, or this file would hold what test_lock.py looks for.
FORBIDDEN = {
    "an address to download from": r"https?://|--(extra-)?index|--find-" + r"links|--trusted",
    "a tag that moves": r"^FROM .*:latest|^ARG \w+_IMAGE=[^:\n]+$",
    "a secret": r"(?i)(password|secret|token|api_key)\s*=\s*\S",
    "another's file, fetched": r"^ADD ",
    "sources built on the way": r"--no-binary|pip install (?!.*(--require-hashes|--no-index))(?!-q \\$)",
    "root to run as": r"^USER (root|0)\b",
    "a mount that only BuildKit knows": r"--mount=",
}


MAKE_SECRETS = module_of("make_secrets")


def offences(text: str) -> list[str]:
    joined = text.replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if not line.startswith("#")]
    return [what for what, pattern in FORBIDDEN.items() if any(re.search(pattern, line) for line in lines)]


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return loaded


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_a_dockerfile_has_nothing_that_it_must_not_have(path: Path) -> None:
    assert offences(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("RUN pip install -q locust", "sources built on the way"),
        ("RUN pip install -q --require-hashes --no-binary :all: -r lock", "sources built on the way"),
        ("ENV PAYMENTS_API_KEY=abc", "a secret"),
        ("RUN curl -O https://example.org/tool", "an address to download from"),
        ("FROM python:latest", "a tag that moves"),
        ("ARG BASE_IMAGE=python", "a tag that moves"),
        ("ADD tool.tar /", "another's file, fetched"),
        ("USER root", "root to run as"),
        ("RUN --mount=type=secret,id=pip true", "a mount that only BuildKit knows"),
    ],
)
def test_what_a_dockerfile_must_not_have_is_found(line: str, what: str) -> None:
    assert offences(f"FROM scratch\n{line}\n") == [what]


def test_the_images_run_as_nobody_and_as_no_other_image_says() -> None:
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^USER (\S+)$", text, re.MULTILINE) == ["10001:10001"]
    [default] = re.findall(r"^ARG BASE_IMAGE=(\S+)$", text, re.MULTILINE)
    arguments = [one["build"]["args"] for one in compose()["services"].values() if "PART" in str(one.get("build"))]
    assert {one["BASE_IMAGE"] for one in arguments} == {f"${{BASE_IMAGE:-{default}}}"}


def test_the_collectors_pins_are_the_same_in_both_files() -> None:
    text = (DOCKER / "otel-collector" / "Dockerfile").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE))
    arguments = compose()["services"]["otel-collector"]["build"]["args"]
    assert arguments == {name: f"${{{name}:-{pin}}}" for name, pin in pins.items()}


def test_the_locks_of_the_images_are_those_of_the_project() -> None:
    files = module_of("runtime_requirements").files()
    stale = [name for name, text in files.items() if (DOCKER / "requirements" / name).read_text("utf-8") != text]
    assert stale == [], "make lock writes them"
    assert {path.name for path in (DOCKER / "requirements").iterdir()} == set(files)


def test_an_image_has_nothing_for_development_and_the_queue_nothing_of_the_shop() -> None:
    runtime = module_of("runtime_requirements")
    for part in ("queue", "shop"):
        assert runtime.needed(runtime.PARTS[part]) & DEVELOPMENT == set()
    assert runtime.needed(runtime.PARTS["queue"]) & {"fastapi", "sqlalchemy", "asyncpg", "uvicorn", "jinja2"} == set()


def test_only_the_image_with_mqadmin_has_what_command_lines_need() -> None:
    runtime = module_of("runtime_requirements")
    assert runtime.needed(runtime.PARTS["shop"]) & COMMAND_LINES == set()
    without_mqadmin = [name for name in runtime.PARTS["queue"] if name != "hourglass-mqadmin"]
    assert runtime.needed(without_mqadmin) & COMMAND_LINES == set()


def test_broker_and_orders_are_told_the_same_levels() -> None:
    services = compose()["services"]
    [levels] = {
        argument.removeprefix("messageDelayLevel=")
        for name in ("broker-a", "broker-a-s")
        for argument in services[name]["command"]
        if argument.startswith("messageDelayLevel=")
    }
    assert services["orders"]["environment"]["ORDERS_DELAY_LEVELS"] == levels


def test_a_container_that_is_started_again_is_the_same_instance_for_prometheus() -> None:
    services = {name: one.get("environment", {}) for name, one in compose()["services"].items()}
    named = {
        name: one.get("OTEL_RESOURCE_ATTRIBUTES")
        for name, one in services.items()
        if "OTEL_EXPORTER_OTLP_ENDPOINT" in one
    }
    assert len(named) == 7
    assert named == {name: f"service.instance.id={name}" for name in named}


def test_what_is_built_here_is_not_looked_for_in_a_registry() -> None:
    policies = {name: one.get("pull_policy") for name, one in compose()["services"].items() if "build" in one}
    assert len(policies) == 9
    assert set(policies.values()) == {"never"}


def test_every_port_of_the_machine_can_be_chosen() -> None:
    ports = [port for one in compose()["services"].values() for port in one.get("ports", ())]
    assert len(ports) == 7
    variables = [re.fullmatch(r"127\.0\.0\.1:\$\{(HOURGLASS_[A-Z]+_PORT):-(\d+)\}:(\d+)", port) for port in ports]
    assert {found and found[2] for found in variables} == {found and found[3] for found in variables} - {None}
    documented = PAGE.read_text(encoding="utf-8")
    assert [found[1] for found in variables if found and found[1] not in documented] == []


def test_grafana_signs_its_visitors_in() -> None:
    assert "ANONYMOUS" not in str(compose()["services"]["grafana"]["environment"])


@pytest.mark.parametrize(("status", "code"), [(200, 0), (204, 0), (404, 1), (503, 1)])
def test_a_service_is_healthy_when_it_says_that_it_is_ready(status: int, code: int) -> None:
    asked = []

    class Service(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Service) as server, ThreadPoolExecutor(1) as thread:
        answered = thread.submit(server.handle_request)
        assert ready_check(server.server_port).returncode == code
        answered.result()
    assert asked == ["/health/ready"]


def test_a_service_that_does_not_answer_is_not_healthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    run = ready_check(port)
    assert run.returncode == 1
    assert "ConnectionRefusedError" in run.stderr


def ready_check(port: int) -> subprocess.CompletedProcess[str]:
    """What the container of orders runs to see whether it is healthy, with another port."""
    how, python, *arguments, own_port = compose()["services"]["orders"]["healthcheck"]["test"]
    assert (how, python, own_port) == ("CMD", "python", "8001")
    command = [sys.executable, *arguments, str(port)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("returncode", "stderr", "code"),
    [
        (0, "", 0),
        (1, "Found 1 known vulnerability", 1),
        (1, "requests.exceptions.ConnectionError: no route", 2),
        (None, "", 2),
    ],
)
def test_an_audit_that_cannot_ask_fails(
    monkeypatch: pytest.MonkeyPatch, returncode: int | None, stderr: str, code: int
) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if returncode is None:
            raise subprocess.TimeoutExpired(command, 1)
        return subprocess.CompletedProcess(command, returncode, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)
    assert module_of("audit").main() == code


def test_no_secret_is_written_into_the_compose_file() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    named = re.findall(r"^\s+(\w*(?:PASSWORD|SECRETS?|AUTH_KEYS|API_KEY|DATABASE_URL)\w*):\s*(\S+)", text, re.MULTILINE)
    assert named
    assert [name for name, value in named if not (name.endswith("_FILE") and value.startswith("/run/hourglass/"))] == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("orders", "payments", "gateway", "postgres", "grafana"):
        (tmp_path / name).mkdir()
    return tmp_path


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_secrets_are_made_once_and_are_their_owners_alone(folder: Path) -> None:
    make_secrets = MAKE_SECRETS.make_secrets
    make_secrets(folder)
    made = contents(folder)
    make_secrets(folder)
    assert contents(folder) == made
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()} == {0o600}
    assert made["orders/auth-keys"] == made["payments/auth-keys"]
    assert made["gateway/webhook-secret"] == made["payments/webhook-secret"]
    password = made["postgres/orders-password"].strip()
    assert made["orders/database-url"] == f"postgresql+asyncpg://orders:{password}@postgres:5432/orders\n"


def test_a_lost_secret_is_taken_from_who_shares_it(folder: Path) -> None:
    make_secrets = MAKE_SECRETS.make_secrets
    make_secrets(folder)
    made = contents(folder)
    for name in ("orders/auth-keys", "gateway/gateway-api-key", "orders/database-url"):
        (folder / name).unlink()
    make_secrets(folder)
    assert contents(folder) == made


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with a file that every user reads, one that its owner reads, and a folder that its owner enters."""
    for name, mode in {"open.conf": 0o644, "closed.conf": 0o000}.items():
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(mode)
    (tmp_path / "closed").mkdir(0o000)
    return tmp_path


@pytest.fixture
def as_another_user(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a container's user, in a folder that it may enter; what root may read says nothing."""
    monkeypatch.chdir(clone)
    clone.chmod(0o755)
    me = os.geteuid()
    if me == 0:
        os.seteuid(10001)
    yield
    os.seteuid(me)
    (clone / "closed").chmod(0o700)


@pytest.mark.usefixtures("as_another_user")
def test_what_containers_cannot_read_of_a_clone_is_found() -> None:
    assert MAKE_SECRETS.unreadable([Path()]) == [Path("closed"), Path("closed.conf")]


@pytest.mark.usefixtures("as_another_user")
def test_nothing_is_made_before_containers_can_read_the_clone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["make_secrets.py", "/nowhere", "."])
    assert MAKE_SECRETS.main() == 1
    assert "cannot read closed and 1 more of this clone; run: chmod -R a+rX deploy" in capsys.readouterr().err


def test_all_that_containers_mount_of_a_clone_is_looked_at_before_they_start() -> None:
    services = compose()["services"]
    looked_at = [Path(one.replace("/opt/deploy", "./deploy")) for one in services["secrets"]["command"][1:]]
    mounts = {name: [one for one in services[name].get("volumes", ()) if one[0] == "."] for name in services}
    assert mounts.pop("secrets") == ["./deploy:/opt/deploy:ro"]
    for name, sources in mounts.items():
        for source in sources:
            assert any(Path(source.split(":")[0]).is_relative_to(folder) for folder in looked_at), (name, source)
    assert [name for name in services if name != "secrets" and not waits_for_secrets(services, name)] == []


def waits_for_secrets(services: dict[str, Any], name: str) -> bool:
    waits_for = services[name].get("depends_on", {})
    return "secrets" in waits_for or any(waits_for_secrets(services, one) for one in waits_for)


def test_the_images_do_not_depend_on_the_modes_of_a_clone() -> None:
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    final = text[text.rindex("\nFROM ") :]
    assert re.findall(r"^COPY (?!--from=build).*", final, re.MULTILINE) == []


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="orders"):
        MAKE_SECRETS.make_secrets(tmp_path)
