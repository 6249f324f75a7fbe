"""The images that docker-compose.yml names, from a registry where one is reached, else made on this machine.

What is made here has names of its own (hourglass-local/...), which docker-compose.yml takes from variables; so no one
takes it for the real one. Debian's packages, and Jaeger and the collector built from the sources of their Go modules at
the versions that docker-compose.yml names, are what it is made of.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent / "images"
PULL_TIMEOUT_S, MAKE_TIMEOUT_S = 120.0, 1_800.0
BUSYBOX = "busybox:1.37.0-musl"  # the smallest that docker-compose.yml names
OURS, JAEGER_HERE, COLLECTOR_HERE = "hourglass-local/", "jaeger:2.13.0", "opentelemetry-collector:0.165.0"
JAEGER_MODULE = "github.com/jaegertracing/jaeger@v1.76.0"  # the one repository of 2.13.0 and 1.76.0
BUILDER = "go.opentelemetry.io/collector/cmd/builder@v0.165.0"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True, slots=True)
class Images:
    """`environment` is how `docker` finds its engine."""

    environment: Mapping[str, str]

    def provide(self) -> dict[str, str]:
        """The variables, all images being there. Raises subprocess.SubprocessError when one cannot be made."""
        if self._pulled(BUSYBOX):  # a registry is reached: docker-compose.yml's own names are good
            return {}
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as threads:
            jaeger = threads.submit(self._compiled, JAEGER_HERE, compile_jaeger, Path(folder, "jaeger"))
            collector = threads.submit(self._compiled, COLLECTOR_HERE, compile_collector, Path(folder, "otelcol"))
            debian = self._made("debian:bookworm", self._debian)
            python = self._made("python:3.11", lambda image: self._build(image, "python", DEBIAN_IMAGE=debian))
            busybox = self._made("busybox:1", lambda image: self._build(image, "busybox", PYTHON_IMAGE=python))
            return {
                "BASE_IMAGE": python,
                "BUILD_IMAGE": self._made("python-build:3.11", lambda image: self._python_build(image, python)),
                "BUSYBOX_IMAGE": busybox,
                "POSTGRES_IMAGE": self._made(
                    "postgres:15", lambda image: self._build(image, "postgres", PYTHON_IMAGE=python)
                ),
                "COLLECTOR_IMAGE": self._made(
                    COLLECTOR_HERE, lambda image: self._build(image, "opentelemetry-collector", collector.result())
                ),
                "JAEGER_IMAGE": self._made(
                    JAEGER_HERE, lambda image: self._build(image, "jaeger", jaeger.result(), BUSYBOX_IMAGE=busybox)
                ),
            }

    def docker(self, *arguments: str, timeout_s: float = MAKE_TIMEOUT_S) -> None:
        """Raises subprocess.SubprocessError."""
        run(["docker", *arguments], timeout_s, environment=self.environment)

    def _pulled(self, name: str) -> bool:
        try:
            self.docker("pull", "--quiet", name, timeout_s=PULL_TIMEOUT_S)
        except subprocess.SubprocessError:
            return False
        return True

    def _has(self, image: str) -> bool:
        try:
            self.docker("image", "inspect", image)
        except subprocess.CalledProcessError:
            return False
        return True

    def _made(self, name: str, make: Callable[[str], None]) -> str:
        image = OURS + name
        if not self._has(image):
            make(image)
        return image

    def _compiled(self, name: str, compiler: Callable[[Path], None], program: Path) -> Path:
        """The program, which is there unless its image is."""
        if not self._has(OURS + name):
            compiler(program)
        return program

    def _build(self, image: str, recipe: str, *more: Path, **arguments: str) -> None:
        """From the recipe's folder and `more` files beside it."""
        with tempfile.TemporaryDirectory() as folder:
            context = Path(shutil.copytree(HERE / recipe, Path(folder, recipe)))
            for path in more:
                shutil.copy(path, context)
            given = [one for name, value in arguments.items() for one in ("--build-arg", f"{name}={value}")]
            self.docker("build", "--quiet", "--network", "host", *given, "--tag", image, str(context))

    def _debian(self, image: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            root, archive = Path(folder, "root"), Path(folder, "root.tar")
            run(["debootstrap", "--variant=minbase", "bookworm", str(root)], MAKE_TIMEOUT_S)
            run(["tar", "-C", str(root), "-cf", str(archive), "."], MAKE_TIMEOUT_S)
            self.docker("import", str(archive), image)

    def _python_build(self, image: str, python: str) -> None:
        """Settings of pip that are paths of this machine stay here."""
        given = {name: text for name, text in os.environ.items() if name.startswith("PIP_") and not Path(text).exists()}
        settings = {name.removeprefix("PIP_").lower().replace("_", "-"): text for name, text in given.items()}
        lines = [f"{key} = {text}\n" for key, text in {**settings, "cert": str(CERTIFICATES)}.items()]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "pip.conf")
            file.write_text("[global]\n" + "".join(lines))
            self._build(image, "python-build", CERTIFICATES, file, PYTHON_IMAGE=python)


def compile_jaeger(program: Path) -> None:
    """From its module as it was published, with the versions of others that it names."""
    with tempfile.TemporaryDirectory() as folder:
        found = run(["go", "mod", "download", "-json", JAEGER_MODULE], MAKE_TIMEOUT_S, folder=folder)
        source = Path(folder, "source")
        shutil.copytree(json.loads(found)["Dir"], source)
        run(["chmod", "-R", "u+w", str(source)], MAKE_TIMEOUT_S)
        _go("build", "-trimpath", "-ldflags=-s -w", "-o", str(program), "./cmd/jaeger", folder=source)


def compile_collector(program: Path) -> None:
    """With the collector's own builder."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE / "opentelemetry-collector" / "builder.yaml", folder)
        _go("run", BUILDER, "--config", "builder.yaml", "--ldflags=-s -w", folder=folder)
        shutil.move(Path(folder, "out", "otelcol"), program)


def _go(*arguments: str, folder: str | Path) -> None:
    run(["go", *arguments], MAKE_TIMEOUT_S, environment=os.environ | {"CGO_ENABLED": "0"}, folder=folder)


def run(
    command: Sequence[str],
    timeout_s: float,
    *,
    environment: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
) -> str:
    """What it prints on its standard output. Raises subprocess.SubprocessError with what it said last."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    done = subprocess.run(
        command,
        env={**(os.environ if environment is None else environment), "PATH": path},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
        error = subprocess.CalledProcessError(done.returncode, list(command), done.stdout, done.stderr)
        error.add_note(said)
        raise error
    return done.stdout
