"""The upgrade, on an engine that is not there: it never replaces what the others cannot do without at that moment."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
import yaml
from compose_stack import ROOT
from docker_files import module_of

UPGRADE: ModuleType = module_of("upgrade")
NAME_SERVERS, PAIR = UPGRADE.NAME_SERVERS, UPGRADE.BROKERS
SERVICES = (*NAME_SERVERS, *PAIR, "postgres", "gateway", "payments", "orders", "otel-collector", "jaeger", "secrets")
HEALTHY_AFTER_S, KNOWN_AFTER_S, IN_SYNC_AFTER_S = 6.0, 8.0, 15.0
NEVER = float("inf")


@dataclass(slots=True)
class FakeEngine:
    """The stack on a clock of its own. A replaced container is healthy, known and in sync only after a while.

    Invariants, checked when something is replaced: of each two, the other one does its work.
    """

    now: float = 0.0
    new: set[str] = field(default_factory=set)
    replaced_at: dict[str, float] = field(default_factory=dict)
    master: str = PAIR[0]
    steps: list[str] = field(default_factory=list)
    in_sync_after_s: float = IN_SYNC_AFTER_S
    secrets_exit_code: int = 0
    rejecting: Callable[[tuple[str, ...]], bool] = lambda _words: False

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def compose(self, *words: str) -> str:
        if self.rejecting(words):
            raise UPGRADE.CommandError(f"{' '.join(words)} failed")
        match words:
            case ("build", "--build-arg", "REVISION=0123abcd"):
                self.steps.append("build")
            case ("ps", "--all", "--quiet"):
                return "\n".join(SERVICES)
            case ("up", "--detach", "--no-build", "--no-deps", service):
                self._replace(service)
            case ("up", "--detach", "--no-build"):
                self.steps.append("up")
                for service in SERVICES:
                    self._replace(service)
            case ("exec", "-T", "namesrv-a", "python", "-m", "mqadmin", command, "-n", servers, *arguments, "--json"):
                return json.dumps(self._mqadmin(command, servers, arguments))
            case _:
                raise AssertionError(f"unknown: {words}")
        return ""

    def docker(self, *words: str) -> str:
        assert words[0] == "inspect"
        return json.dumps([{"Config": {"Labels": self._labels(one)}, "State": self._state(one)} for one in words[1:]])

    def is_outage(self) -> bool:
        return not any(map(self._serves_routes, NAME_SERVERS)) or not self._healthy(self.master)

    # ---- what it is like

    def _labels(self, service: str) -> dict[str, str]:
        return {"com.docker.compose.service": service, "com.docker.compose.oneoff": "False"}

    def _since(self, service: str) -> float:
        return self.now - self.replaced_at.get(service, -NEVER)

    def _healthy(self, service: str) -> bool:
        return self._since(service) >= HEALTHY_AFTER_S

    def _serves_routes(self, name_server: str) -> bool:
        return self._since(name_server) >= KNOWN_AFTER_S

    def _is_in_sync(self) -> bool:
        return min(map(self._since, PAIR)) >= self.in_sync_after_s

    def _state(self, service: str) -> dict[str, Any]:
        if service == "secrets":
            return {"Status": "exited", "ExitCode": self.secrets_exit_code}
        return {"Status": "running", "Health": {"Status": "healthy" if self._healthy(service) else "starting"}}

    # ---- what happens to it

    def _replace(self, service: str) -> None:
        if service in self.new:
            return
        self.steps += [service] if service in (*NAME_SERVERS, *PAIR) else []
        self.new.add(service)
        self.replaced_at[service] = self.now
        assert not self.is_outage(), f"replacing {service} is an outage"
        if service in PAIR:
            (other,) = set(PAIR) - {service}
            assert self._since(other) >= self.in_sync_after_s, f"{service} was replaced before {other} was in sync"

    def _mqadmin(self, command: str, servers: str, arguments: list[str]) -> dict[str, Any]:
        match command, arguments:
            case "clusterList", []:
                name_server = servers.partition(":")[0]
                return {"brokers": [{"broker_name": "broker-a"}] * (2 if self._serves_routes(name_server) else 0)}
            case "haStatus", ["-b", address]:
                return {"brokers": [self._ha_status(address.partition(":")[0])]}
            case "switchMaster", ["-b", "broker-a", "--to", address, "-y"]:
                assert self._is_in_sync(), "a switch while the replica lacks something"
                self.master = address.partition("@")[2]
                self.steps.append(f"switch to {self.master}")
                return {}
            case _:
                raise AssertionError(f"unknown: {command} {arguments}")

    def _ha_status(self, service: str) -> dict[str, Any]:
        if not self._healthy(service):
            raise UPGRADE.CommandError(f"{service} does not answer")
        is_master, in_sync = service == self.master, self._is_in_sync()
        return {
            "broker_address": f"10.0.0.1:10911@{service}",
            "role": "SYNC_MASTER" if is_master else "SLAVE",
            "writable": is_master,
            "in_sync_replicas": (2 if in_sync else 1) if is_master else None,
            "in_sync": None if is_master else in_sync,
            "connected": None if is_master else in_sync,
        }


def upgrade(engine: FakeEngine) -> None:
    UPGRADE.Upgrade(engine, "0123abcd", say=lambda _: None, monotonic=lambda: engine.now, sleep=engine.sleep).run()


def test_a_command_that_fails_is_named_with_what_it_said() -> None:
    command_line = UPGRADE.CommandLine(["sh", "-c", "echo no room >&2; exit 3"], [])
    with pytest.raises(UPGRADE.CommandError, match=r"sh -c .* build failed with 3: no room"):
        command_line.compose("build")
    with pytest.raises(UPGRADE.CommandError, match="not-a-program"):
        UPGRADE.CommandLine(["not-a-program"], ["-p", "shop"]).compose("ps")


def test_the_services_are_those_of_the_compose_file() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    assert set(SERVICES) == {name for name, one in services.items() if "profiles" not in one}
    for name in (*NAME_SERVERS, *PAIR):
        assert services[name]["image"].startswith("hourglass-queue:")


def test_all_at_once_is_an_outage() -> None:
    with pytest.raises(AssertionError, match="outage"):
        FakeEngine().compose("up", "--detach", "--no-build")


@pytest.mark.parametrize("master", PAIR)
def test_name_servers_the_replica_and_the_old_master_are_replaced_one_by_one(master: str) -> None:
    engine = FakeEngine(master=master)
    (replica,) = set(PAIR) - {master}
    upgrade(engine)
    assert engine.steps == ["build", *NAME_SERVERS, replica, f"switch to {replica}", master, "up"]
    assert engine.new == set(SERVICES)


def test_what_is_up_to_date_stays_and_the_pair_only_changes_its_roles() -> None:
    engine = FakeEngine(new=set(SERVICES))
    upgrade(engine)
    assert engine.replaced_at == {}


@pytest.mark.parametrize("broken", ["namesrv-b", "broker-a-s"])
def test_nothing_is_begun_while_something_is_unhealthy(broken: str) -> None:
    engine = FakeEngine(replaced_at={broken: 0.0})
    with pytest.raises(UPGRADE.UpgradeError, match=f"{broken} is not healthy"):
        upgrade(engine)
    assert engine.steps == []


def test_a_replica_that_does_not_come_back_leaves_the_master_alone() -> None:
    engine = FakeEngine(in_sync_after_s=1_000.0)
    with pytest.raises(UPGRADE.UpgradeError, match="not within 180 s: broker-a-s is healthy, and the others know it"):
        upgrade(engine)
    assert engine.steps == ["build", *NAME_SERVERS, "broker-a-s"]
    assert "broker-a" not in engine.new


def test_a_switch_that_fails_leaves_the_master_alone_and_the_upgrade_can_be_continued() -> None:
    engine = FakeEngine(rejecting=lambda words: "switchMaster" in words)
    with pytest.raises(UPGRADE.UpgradeError, match="switchMaster"):
        upgrade(engine)
    assert "broker-a" not in engine.new
    engine.rejecting = lambda _words: False
    engine.steps.clear()
    upgrade(engine)
    assert engine.steps == ["build", "switch to broker-a-s", "broker-a", "up"]


def test_secrets_that_cannot_be_made_end_it_at_once() -> None:
    engine = FakeEngine(secrets_exit_code=1)
    with pytest.raises(UPGRADE.UpgradeError, match="secrets ended with 1; its log says why"):
        upgrade(engine)
    assert engine.steps == ["build"]
    assert engine.now == 0.0
