"""Servers and clients from Maven Central: where their jars are, and how a Java program of theirs is started."""

from __future__ import annotations

import asyncio
import functools
import re
from pathlib import Path

from hourglass_loadtest.peers.peer import PeerError, missing_programs, which

PROJECTS = Path(__file__).parent / "java"
HEAP = "-Xmx512m"
FETCH_TIMEOUT_S = 600.0


def missing() -> str | None:
    """For `Peer.missing`."""
    return missing_programs("java", "mvn")


async def classpath(project: str, folder: Path) -> str:
    """The jars of `java/project`, fetched by Maven if they are not there yet. Raises PeerError."""
    target = folder / f"{project}.classpath"
    mvn = which("mvn") or "mvn"
    process = await asyncio.create_subprocess_exec(
        mvn, "--batch-mode", "--quiet", "--file", str(PROJECTS / project / "pom.xml"), "dependency:build-classpath",
        f"-Dmdep.outputFile={target}", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(FETCH_TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        process.terminate()
        await process.wait()
        raise PeerError(f"Maven did not fetch {project} within {FETCH_TIMEOUT_S:.0f} s") from None
    if process.returncode:
        raise PeerError(f"Maven could not fetch {project}: {output.decode(errors='replace').strip()[-500:]}")
    return target.read_text(encoding="utf-8").strip()


def java(classpath_text: str, *arguments: str) -> list[str]:
    """A command with the heap that every program of Java has here."""
    return ["java", HEAP, "-cp", classpath_text, *arguments]


@functools.cache
def version_of(project: str) -> str:
    """The version in the project's file."""
    found = re.search(
        r"<artifactId>\S+</artifactId>\s*<version>([0-9]+\.[^<]+)<", (PROJECTS / project / "pom.xml").read_text()
    )
    return found[1] if found else "unknown"
