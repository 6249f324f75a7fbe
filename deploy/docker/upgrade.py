"""Replaces the containers of docker-compose.yml by what the clone has now, one by one: python upgrade.py [OPTION ...]

OPTIONs are Compose's own, as they stand before its commands: -p NAME, --profile monitoring. Nothing is replaced before
the others can do without it:

    1. images are built, and what secrets are missing is made
    2. the name servers, each when the one before knows both brokers again
    3. the replica of the pair; then it has to be in sync
    4. the replica becomes the master (mqadmin switchMaster), and the old master, a replica in sync now, is replaced
    5. everything else, as Compose orders it

Which broker is the master is asked, not assumed, and the pair keeps the roles that step 4 gives it. What is up to date
is left alone, so that an upgrade that was broken off goes on when it is started again. It begins only while all name
servers and brokers are healthy and in sync. Exit code 0: done; 1: stopped where it was, and why.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).parents[2]
NAME_SERVERS = ("namesrv-a", "namesrv-b")
BROKER_NAME, BROKERS, BROKER_PORT = "broker-a", ("broker-a", "broker-a-s"), 10911
ASKED_FROM = NAME_SERVERS[0]  # whose container has mqadmin, and is not replaced while the pair is
SECRETS = "secrets"
STEP_TIMEOUT_S, LOOK_EVERY_S, COMMAND_TIMEOUT_S = 180.0, 1.0, 1_800.0


class UpgradeError(Exception):
    """A step was not done, and none after it was begun; the sentence says which and why."""


class CommandError(UpgradeError):
    """A command failed, or did not answer; while something starts, that is as it has to be."""


class Engine(Protocol):
    """Compose and Docker. Methods raise CommandError for a command that fails."""

    def compose(self, *arguments: str) -> str:
        """What `docker compose ...` prints."""

    def docker(self, *arguments: str) -> str:
        """What `docker ...` prints."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The programs of this machine. `options` stand before Compose's command."""

    program: Sequence[str]
    options: Sequence[str]

    def compose(self, *arguments: str) -> str:
        return self._run([*self.program, *self.options, *arguments])

    def docker(self, *arguments: str) -> str:
        return self._run(["docker", *arguments])

    def _run(self, command: Sequence[str]) -> str:
        try:
            done = subprocess.run(  # noqa: S603
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CommandError(f"{' '.join(command)}: {error}") from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-2_000:]
            raise CommandError(f"{' '.join(command)} failed with {done.returncode}: {said}")
        return done.stdout


@dataclass(frozen=True, slots=True)
class Upgrade:
    """One upgrade, to images of this commit. `say` is told each step; `monotonic` and `sleep` are time's."""

    engine: Engine
    revision: str = "unknown"
    say: Callable[[str], None] = print
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def run(self) -> None:
        """Raises UpgradeError."""
        for service in (*NAME_SERVERS, *BROKERS):
            if not self._healthy(service):
                raise UpgradeError(f"{service} is not healthy; an upgrade begins with healthy name servers and brokers")
        self._wait(self._in_sync, f"{' and '.join(BROKERS)} are in sync")
        self.say("building images")
        # By no variable of docker-compose.yml: to Compose 1.29, another value makes another container.
        self.engine.compose("build", "--build-arg", f"REVISION={self.revision}")
        self._up("--no-deps", SECRETS)
        self._wait(self._secrets_are_made, f"{SECRETS} has ended")
        for service in NAME_SERVERS:
            self._replace(service, lambda service=service: self._knows_brokers(service))
        master, replica = self._roles()
        self._replace(replica, self._in_sync)
        self._switch(replica)
        self._replace(master, self._in_sync)
        self.say("everything else")
        self._up()
        self._wait(lambda: not self._unhealthy(), "everything is healthy")
        self.say("done")

    def _replace(self, service: str, is_back: Callable[[], bool]) -> None:
        self.say(f"replacing {service}")
        self._up("--no-deps", service)
        self._wait(lambda: self._healthy(service) and is_back(), f"{service} is healthy, and the others know it again")

    def _up(self, *arguments: str) -> None:
        self.engine.compose("up", "--detach", "--no-build", *arguments)

    def _switch(self, replica: str) -> None:
        (status,) = self._mqadmin("haStatus", "-b", f"{replica}:{BROKER_PORT}")["brokers"]
        self.say(f"making {replica} the master")
        self._mqadmin("switchMaster", "-b", BROKER_NAME, "--to", status["broker_address"], "-y")
        self._wait(lambda: self._in_sync() and self._roles()[1] != replica, f"{replica} is a master in sync")

    # ---- what is asked

    def _states(self) -> dict[str, Mapping[str, Any]]:
        """Service -> what Docker says of its container, running or not."""
        ids = self.engine.compose("ps", "--all", "--quiet").split()
        found = json.loads(self.engine.docker("inspect", *ids)) if ids else []
        labels = [(one["Config"]["Labels"], one["State"]) for one in found]
        prefix = "com.docker.compose"
        return {one[f"{prefix}.service"]: state for one, state in labels if one.get(f"{prefix}.oneoff") != "True"}

    def _unhealthy(self) -> set[str]:
        return {
            service
            for service, state in self._states().items()
            if service != SECRETS
            and not (state["Status"] == "running" and state.get("Health", {}).get("Status") == "healthy")
        }

    def _healthy(self, service: str) -> bool:
        return service in self._states() and service not in self._unhealthy()

    def _secrets_are_made(self) -> bool:
        """Raises UpgradeError when they were not."""
        state = self._states()[SECRETS]
        if state["Status"] == "exited" and state["ExitCode"]:
            raise UpgradeError(f"{SECRETS} ended with {state['ExitCode']}; its log says why")
        return bool(state["Status"] == "exited")

    def _knows_brokers(self, name_server: str) -> bool:
        brokers = self._mqadmin("clusterList", name_servers=f"{name_server}:9876")["brokers"]
        return len(brokers) == len(BROKERS)

    def _in_sync(self) -> bool:
        """Whether one of the pair is a master that may be written and has the other one with it."""
        statuses = self._pair().values()
        masters = [one for one in statuses if one["role"] != "SLAVE"]
        return (
            len(masters) == 1
            and masters[0]["writable"]
            and masters[0]["in_sync_replicas"] == len(BROKERS)
            and all(one["in_sync"] and one["connected"] for one in statuses if one["role"] == "SLAVE")
        )

    def _roles(self) -> tuple[str, str]:
        """(the service that is the master, the other one), of a pair in sync."""
        roles = {service: status["role"] for service, status in self._pair().items()}
        (replica,) = [service for service, role in roles.items() if role == "SLAVE"]
        (master,) = set(BROKERS) - {replica}
        return master, replica

    def _pair(self) -> dict[str, Mapping[str, Any]]:
        found = {}
        for service in BROKERS:
            (found[service],) = self._mqadmin("haStatus", "-b", f"{service}:{BROKER_PORT}")["brokers"]
        return found

    def _mqadmin(self, command: str, *arguments: str, name_servers: str = "") -> dict[str, Any]:
        asked = name_servers or ";".join(f"{one}:9876" for one in NAME_SERVERS)
        words = ("python", "-m", "mqadmin", command, "-n", asked, *arguments, "--json")
        answer: dict[str, Any] = json.loads(self.engine.compose("exec", "-T", ASKED_FROM, *words))
        return answer

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until it comes true; what cannot be asked is not there yet. Raises UpgradeError when it does not in time."""
        deadline, reason = self.monotonic() + STEP_TIMEOUT_S, ""
        while True:
            try:
                if condition():
                    return
            except CommandError as error:
                reason = f"; {error}"
            if self.monotonic() >= deadline:
                raise UpgradeError(f"not within {STEP_TIMEOUT_S:g} s: {what}{reason}")
            self.sleep(LOOK_EVERY_S)


def revision() -> str:
    """The commit that the images are built from, as git has it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def compose_program() -> list[str]:
    """Compose 2 where Docker has it, else docker-compose."""
    try:
        subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30, check=True)  # noqa: S607
    except (OSError, subprocess.SubprocessError):
        return ["docker-compose"]
    return ["docker", "compose"]


def main() -> int:
    try:
        Upgrade(CommandLine(compose_program(), sys.argv[1:]), revision()).run()
    except UpgradeError as error:
        print(f"upgrade: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
