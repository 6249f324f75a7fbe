"""The wheels of `make wheels`, installed into empty environments outside of the checkout: parts need what they say."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.needs("package index")]

ROOT = Path(__file__).parents[2]
FOLDERS = ("libs/*", "services/*", "tools/*", "deploy/local")
PIN = re.compile(r"^([a-z0-9-]+==[^\s;]+)( ; .+?)? \\$", re.MULTILINE)
INSTALL_TIMEOUT_S = 300
CLIENT = {"hourglass-mqclient", "hourglass-mqproto", "hourglass-mqremoting", "hourglass-osenv", "hourglass-telemetry"}
OTHERS_OF_THE_CLIENT = {"grpcio", "protobuf", "opentelemetry-api", "typing-extensions"}


def projects() -> dict[str, str]:
    """Name -> version of every library, server and tool."""
    found = [
        tomllib.loads(path.read_text())["project"] for one in FOLDERS for path in ROOT.glob(f"{one}/pyproject.toml")
    ]
    return {project["name"]: project["version"] for project in found}


def without_checkout(**more: str) -> dict[str, str]:
    """An environment for programs that must not find this checkout."""
    own = {"VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL"}
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON") and name not in own}
    return kept | more


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that they were built in."""
    folder = tmp_path_factory.mktemp("wheels")
    command = [
        "make",
        "--old-file",
        ".venv/.runtime",
        "wheels",
        f"WHEELS={folder}",
        f"BIN={Path(sys.executable).parent}",
    ]
    subprocess.run(
        command, cwd=ROOT, env=without_checkout(), check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S
    )
    return folder


class Installed:
    """An environment with the wheels of these packages, and what they need in the versions of the lock."""

    def __init__(self, folder: Path, wheels: Path, *names: str) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        pins = ["".join(found) for found in PIN.findall((ROOT / "requirements/runtime.lock").read_text())]
        (folder / "pins.txt").write_text("\n".join(pins))
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True, timeout=60)
        python, what = str(self.bin / "python"), ["--quiet", "--constraint", str(folder / "pins.txt"), *names]
        run = self._install(
            [str(Path(sys.executable).parent / "uv"), "pip", "install", "--python", python, *what], wheels
        )
        if run.returncode:
            run = self._install([sys.executable, "-m", "pip", "--python", python, "install", *what], wheels)
        assert run.returncode == 0, run.stdout + run.stderr

    def _install(self, command: list[str], wheels: Path) -> subprocess.CompletedProcess[str]:
        environment = without_checkout(UV_FIND_LINKS=str(wheels), PIP_FIND_LINKS=str(wheels))
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )

    def run(
        self, program: str, *arguments: str, timeout_s: float = 60, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """What a program of this environment does in its folder."""
        return subprocess.run(
            [str(self.bin / program), *arguments],
            cwd=self.folder,
            env=without_checkout(**environment),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def packages(self) -> set[str]:
        script = "import importlib.metadata as m, json; print(json.dumps([d.name for d in m.distributions()]))"
        listed = json.loads(self.run("python", "-c", script).stdout)
        return {re.sub(r"[-_.]+", "-", name).lower() for name in listed}

    def mib(self) -> float:
        """What its packages take, without what Python compiles of them."""
        (site,) = self.folder.glob("venv/lib/python*/site-packages")
        return sum(path.lstat().st_size for path in site.rglob("*") if "__pycache__" not in path.parts) / 2**20


def test_every_part_has_a_wheel_and_an_sdist_of_one_version(wheels: Path) -> None:
    assert len(set(projects().values())) == 1
    stems = {f"{name.replace('-', '_')}-{version}" for name, version in projects().items()}
    expected = {f"{stem}{end}" for stem in stems for end in ("-py3-none-any.whl", ".tar.gz")}
    assert {path.name for path in wheels.iterdir()} - {".gitignore"} == expected


def test_an_sdist_makes_the_same_wheel(wheels: Path, tmp_path: Path) -> None:
    (sdist,) = wheels.glob("hourglass_mqclient-*.tar.gz")
    (wheel,) = wheels.glob("hourglass_mqclient-*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    (source,) = tmp_path.iterdir()
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=60)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_client_comes_alone(wheels: Path, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    client = Installed(tmp_path, wheels, "hourglass-mqclient")
    packages = client.packages()
    assert packages == CLIENT | OTHERS_OF_THE_CLIENT
    record_property("figure", f"client alone: {len(packages)} packages, {client.mib():.1f} MiB")
    imported = client.run("python", "-c", "import mqclient, mqclient.sync; print(mqclient.__file__)")
    assert imported.stdout.startswith(str(tmp_path)), imported.stderr
    asked = client.run("python", "-c", "import telemetry; telemetry.observe('shop')")
    assert "pip install hourglass-telemetry[export]" in asked.stderr


def test_the_broker_comes_without_the_shop(
    wheels: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    broker = Installed(tmp_path, wheels, "hourglass-mq-broker")
    packages = broker.packages()
    ours = {name for name in packages if name.startswith("hourglass-")}
    assert ours == {
        f"hourglass-{name}" for name in ("mq-broker", "mqfilter", "mqproto", "mqremoting", "osenv", "telemetry")
    }
    assert packages.isdisjoint({"fastapi", "sqlalchemy", "httpx", "pydantic", "rich", "typer"})
    record_property("figure", f"broker alone: {len(packages)} packages, {broker.mib():.1f} MiB")
    assert (
        broker.run("python", "-m", "mq_broker", "--version").stdout
        == f"mq-broker {projects()['hourglass-mq-broker']}\n"
    )


@contextmanager
def dev_queue(installed: Installed) -> Iterator[str]:
    """The URL of `hourglass dev`, which ends by Ctrl-C."""
    command = [str(installed.bin / "hourglass"), "dev", "--port", "0", "--broker-port", "0"]
    with subprocess.Popen(
        command, cwd=installed.folder, env=without_checkout(), stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        (url,) = re.findall(r"mq://\S+", running.stdout.readline())
        try:
            yield url
        finally:
            running.send_signal(signal.SIGINT)
            running.stdout.read()
    assert running.returncode == 0


def test_the_ten_lines_of_the_readme_run_against_a_developers_queue(wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "application").mkdir()
    (tmp_path / "queue").mkdir()
    application = Installed(tmp_path / "application", wheels, "hourglass-mqclient")
    queue = Installed(tmp_path / "queue", wheels, "hourglass-cli")
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (script,) = [block for block in blocks if "five seconds later" in block]
    with dev_queue(queue) as url:
        (application.folder / "example.py").write_text(script.replace("mq://127.0.0.1:9876", url))
        done = application.run("python", "example.py")
    assert done.stdout.splitlines() == ["b'now'", "b'five seconds later'"], done.stderr

    missing = queue.run("hourglass", "admin", "topicList")
    assert (missing.returncode, missing.stderr) == (
        2,
        "hourglass: admin is not installed; install the package hourglass-mqadmin\n",
    )
    assert queue.run("hourglass", "namesrv", "--version").stdout.startswith("mq-namesrv ")
    assert queue.run("hourglass", "broker", "--version").stdout.startswith("mq-broker ")
    assert "usage: " in queue.run("hourglass", "dump-log", "--help").stdout


def test_the_demonstration_and_the_operators_tools_run_from_the_wheels(wheels: Path, tmp_path: Path) -> None:
    shop = Installed(tmp_path, wheels, "hourglass-cli[admin,demo]")
    demonstration = shop.run("hourglass", "demo", timeout_s=110, DEMO_ORDERS="20")
    assert demonstration.returncode == 0, demonstration.stdout + demonstration.stderr
    assert "topicList" in shop.run("hourglass", "admin", "--help").stdout
    assert shop.packages().isdisjoint({"pyspark", "locust", "pytest", "sphinx"})
