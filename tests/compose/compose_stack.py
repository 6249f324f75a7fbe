"""docker-compose.yml, brought up for tests: under a name of its own, with an unpaid order closing after seconds."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compose_images import run

from hourglass_local.http_client import AccessTokens
from servicekit.auth import parse_keys

ROOT = Path(__file__).parents[2]
CLOSE_AFTER_S, GATEWAY_DELAY_MS = 8, 3_000
BUILD_TIMEOUT_S, UP_TIMEOUT_S, DOWN_TIMEOUT_S, COMMAND_TIMEOUT_S = 1_200.0, 300.0, 180.0, 60.0
ORDERS, PAYMENTS, GATEWAY, JAEGER = (f"http://127.0.0.1:{port}" for port in (8001, 8002, 8003, 16686))
ONE_SHOT = "secrets"
REVISION = "0123abcd"  # a commit, for the images' label


class StackError(AssertionError):
    """The stack is not as it has to be; the message says which container, and what it last wrote."""


@dataclass(frozen=True, slots=True)
class Stack:
    """One project of Compose. `environment` has the variables of docker-compose.yml too."""

    project: str
    environment: Mapping[str, str]

    def compose(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Raises subprocess.SubprocessError."""
        command = ["docker-compose", "--project-name", self.project, *arguments]
        return run(command, timeout_s, environment=self.environment, folder=ROOT)

    def docker(self, *arguments: str) -> str:
        """Raises subprocess.SubprocessError."""
        return run(["docker", *arguments], COMMAND_TIMEOUT_S, environment=self.environment)

    def up(self) -> None:
        """Build, and return when all are healthy. Raises StackError."""
        self.compose("build", "--build-arg", f"REVISION={REVISION}", timeout_s=BUILD_TIMEOUT_S)
        self.start()

    def start(self) -> None:
        """Return when all are healthy. Raises StackError."""
        try:
            self.compose("up", "--detach", timeout_s=UP_TIMEOUT_S)
        except subprocess.CalledProcessError as error:
            raise StackError(f"{error.stderr[-2_000:]}\n{self._last_words()}") from error
        self.wait(lambda: not self.unhealthy(), UP_TIMEOUT_S, "all containers are healthy")

    def down(self) -> None:
        """Containers, networks and volumes."""
        self.compose("down", "--volumes", "--timeout", "20", timeout_s=DOWN_TIMEOUT_S)

    def containers(self) -> dict[str, dict[str, Any]]:
        """Service -> what `docker inspect` says of its container."""
        ids = self.left("ps", "--all")
        found = json.loads(self.docker("inspect", *ids)) if ids else []
        return {one["Config"]["Labels"]["com.docker.compose.service"]: one for one in found}

    def left(self, *command: str) -> list[str]:
        """Ids of what belongs to the project: `ps --all`, `volume ls`, `network ls`."""
        label = f"label=com.docker.compose.project={self.project}"
        return self.docker(*command, "--quiet", "--filter", label).split()

    def unhealthy(self) -> list[str]:
        """Services that are not healthy, or that were to end and did not end well."""
        states = {service: one["State"] for service, one in self.containers().items()}
        return sorted(
            service
            for service, state in states.items()
            if not (
                (state["Status"], state["ExitCode"]) == ("exited", 0)
                if service == ONE_SHOT
                else state["Status"] == "running" and state.get("Health", {}).get("Status") == "healthy"
            )
        )

    def wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Raises StackError when it does not come true in time."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise StackError(f"not within {timeout_s:g} s: {what}; {self.unhealthy()}\n{self._last_words()}")
            time.sleep(0.5)

    def badges(self) -> AccessTokens:
        """Tokens of all roles, signed with the keys that the stack has made."""
        return AccessTokens(parse_keys(self.compose("exec", "-T", "orders", "cat", "/run/hourglass/auth-keys").strip()))

    def _last_words(self) -> str:
        return "\n".join(
            f"---- {service}\n{self.docker('logs', '--tail', '15', one['Id'])}"
            for service, one in self.containers().items()
            if service in self.unhealthy()
        )


def variables(images: Mapping[str, str]) -> dict[str, str]:
    """What docker-compose.yml is given."""
    return {
        **images,
        "HOURGLASS_CLOSE_AFTER_S": str(CLOSE_AFTER_S),
        "HOURGLASS_GATEWAY_DELAY_MS": str(GATEWAY_DELAY_MS),
        "HOURGLASS_RATE_LIMIT": "off",
    }


def project_name() -> str:
    return f"hourglass-test-{os.getpid()}"
