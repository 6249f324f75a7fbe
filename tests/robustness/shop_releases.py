"""Two versions of orders and of payments in one shop: their processes run the code of one or of the other.

A version is a folder with packages, which a process finds before those that are installed; the folder of what is
installed is empty. Each process has a link to the folder of its version, and a release is to stop it, to have the link
lead to another version, and to start it again.
"""

from __future__ import annotations

import asyncio
import compileall
import io
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from shop_plan import ORDERS, PAYMENTS, SECOND_ORDERS, SECOND_PAYMENTS, Blow, Deed, RoundPlan, plan_around
from shop_rounds import Round
from shop_truth import Truth
from shop_victims import Faults, victims_of

from hourglass_local.cluster import Cluster
from hourglass_local.process import Check, ManagedProcess
from orders import app as orders_app
from osenv import SeededRng
from payments import app as payments_app
from servicekit.testing.migrations import with_a_later_one

ROOT = Path(__file__).parents[2]
MIGRATIONS = {ORDERS: orders_app.MIGRATIONS, PAYMENTS: payments_app.MIGRATIONS}
FIRST, SECOND = (ORDERS, PAYMENTS), (SECOND_ORDERS, SECOND_PAYMENTS)
TRADE_S = 8.0  # before each step
STEP_S = 4.0  # so long orders are placed while a step is taken, which is what it takes on an idle machine
ON_A_LATER_SCHEMA = "the schema is of a later version and works with this one"
INSTALLED, EARLIER, LATER = "installed", "earlier", "later"
EXPAND = {
    ORDERS: "ALTER TABLE orders ADD COLUMN channel VARCHAR(20) DEFAULT 'shop' NOT NULL",
    PAYMENTS: "ALTER TABLE payments ADD COLUMN channel VARCHAR(20) DEFAULT 'shop' NOT NULL",
}


@dataclass(frozen=True, slots=True)
class Step:
    """These processes are stopped, or killed, and started again with the code of `version`."""

    processes: tuple[str, ...]
    version: str
    is_killed: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """All processes run `before`, and buyers trade; then come the steps, each with trade after it."""

    before: str
    steps: tuple[Step, ...]


# Half of the processes get the version that has one migration more, and all go on. The version before does not start
# again, since it may be of the time before any could (docs/guides/releases.md).
HALF = Release(EARLIER, (Step(SECOND, INSTALLED),))
# The next version comes, the processes of this one are killed and start on its schema, and it goes again.
ROLLED_BACK = Release(INSTALLED, (Step(SECOND, LATER), Step(FIRST, INSTALLED, is_killed=True), Step(SECOND, INSTALLED)))


def _write_earlier(service: str, folder: Path) -> None:
    """Everything as it was when the newest migration of this service was written."""
    newest = f"services/{service}/src/{service}/migrations/versions/v{MIGRATIONS[service].head}_*.py"
    added = _git("log", "-1", "--diff-filter=A", "--format=%H", "--", newest).decode().strip()
    source = folder.with_name(f"{service}.source")
    with tarfile.open(fileobj=io.BytesIO(_git("archive", f"{added}^" if added else "HEAD", "libs", "services"))) as tar:
        tar.extractall(source, filter="data")
    folder.mkdir()
    for package in [*source.glob("libs/*/src/*"), *source.glob(f"services/{service}/src/*")]:
        compileall.compile_dir(package, quiet=1)  # or all processes that start at once would do it, each for itself
        (folder / package.name).symlink_to(package)
        _write_metadata(package.parents[1], folder)


def _write_metadata(distribution: Path, folder: Path) -> None:
    """What an installation of this version would have said of itself: its transports are found by entry points."""
    project = tomllib.loads((distribution / "pyproject.toml").read_text())["project"]
    metadata = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = ConfigParser(delimiters="=")
    groups.optionxform = str  # type: ignore[assignment,method-assign]  # names are kept as they are written
    groups.read_dict(project.get("entry-points", {}))
    with (metadata / "entry_points.txt").open("w") as file:
        groups.write(file)


def _write_later(service: str, folder: Path) -> None:
    """What is installed, and a migration that adds a column."""
    migrations = MIGRATIONS[service]
    without = shutil.ignore_patterns("__pycache__", "migrations")
    shutil.copytree(ROOT / "services" / service / "src" / service, folder / service, ignore=without)
    with_a_later_one(migrations, folder / service / "migrations", EXPAND[service], oldest_code=migrations.head)


def _write_installed(_service: str, folder: Path) -> None:
    folder.mkdir()


_WRITERS = {EARLIER: _write_earlier, INSTALLED: _write_installed, LATER: _write_later}


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def _link(folder: Path, name: str) -> Path:
    """To the code of a process."""
    return folder / "code" / name


def _give(folder: Path, name: str, version: str) -> None:
    """From its next start on the process runs this version."""
    link = _link(folder, name)
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(folder / "versions" / version / name.partition("-")[0])


class _Versioned(Cluster):
    """Every process of orders and payments looks for its packages behind a link of its own first."""

    def _process(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        ready: Check,
        environment: Mapping[str, str] | None = None,
    ) -> ManagedProcess:
        code = {"PYTHONPATH": str(_link(self.folder, name))} if name in (*FIRST, *SECOND) else {}
        return super()._process(name, module, arguments, ready, {**(environment or {}), **code})


class _Releasing(Faults):
    """The steps of a release. Counted is for each turn of trade how often each process has done what it was asked; on
    record is the schema of each service in it, and which process was started on a later one.
    """

    def __init__(self, cluster: Cluster, truth: Truth, steps: Sequence[Step]) -> None:
        super().__init__(victims_of(cluster), truth)
        self._cluster = cluster
        self._steps = steps

    async def strike(self, blows: Sequence[Blow], begun: Sequence[asyncio.Event]) -> None:
        """A turn of trade before each step, and one after the last."""
        for turn, (blow, has_begun) in enumerate(zip(blows, begun, strict=True)):
            if turn:
                await self._take(self._steps[turn - 1])
            answered = self._truth.answers.copy()
            has_begun.set()
            await asyncio.sleep(blow.after_s)
            for name, url in self._cluster.shop.urls.items():
                port = url.rpartition(":")[2]
                self.counts[f"turn {turn}: {name}"] = self._truth.answers[port] - answered[port]
            for service in MIGRATIONS:
                self.counts[f"turn {turn}: {service} at {await self._revision(service)}"] += 1

    async def _take(self, step: Step) -> None:
        processes = [self._cluster.shop.processes[name] for name in step.processes]
        await asyncio.gather(*(one.kill() if step.is_killed else one.terminate() for one in processes))
        for process in processes:
            _give(self._cluster.folder, process.name, step.version)
        await asyncio.gather(*(process.start() for process in processes))
        for process in processes:
            self.counts[f"{process.name} on a later schema"] = process.log_path.read_text().count(ON_A_LATER_SCHEMA)

    async def _revision(self, service: str) -> str:
        server = self._cluster.shop.postgresql
        assert server is not None
        return (await asyncio.to_thread(server.run_sql, service, "SELECT version_num FROM alembic_version")).strip()


@dataclass
class ReleaseRound(Round):
    """A round without kills but those of the release."""

    cluster_class: ClassVar[type[Cluster]] = _Versioned
    clocks_ahead_ms: ClassVar[Mapping[str, int]] = {}

    release: Release = HALF

    def plan(self) -> RoundPlan:
        """A turn of trade for each version of the shop."""
        turns = [Blow(TRADE_S, Deed.PAUSE, (), STEP_S)] * (1 + len(self.release.steps))
        return plan_around(turns, self.seed, self.orders, SeededRng(self.seed))

    def make_cluster(self, gateway_seed: int) -> Cluster:
        """All processes have the code of the version before."""
        for version in {self.release.before, *(step.version for step in self.release.steps)}:
            (folder := self.folder / "versions" / version).mkdir(parents=True)
            for service in MIGRATIONS:
                _WRITERS[version](service, folder / service)
        cluster = super().make_cluster(gateway_seed)
        for name in (*FIRST, *SECOND):
            _give(self.folder, name, self.release.before)
        return cluster

    def faults(self, cluster: Cluster) -> Faults:
        """The release."""
        return _Releasing(cluster, self.truth, self.release.steps)
