"""cProfile's statistics of broker and client as one text."""

from __future__ import annotations

import io
import pstats
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hourglass_loadtest.run import Profiles
from hourglass_loadtest.workload import Workload

FUNCTIONS = 40


def write_profile(
    path: Path, workload: Workload, profiles: Profiles, metrics: Mapping[str, float], code: Mapping[str, Any]
) -> None:
    """The functions with the most time of their own. Raises OSError."""
    head = (
        f"{workload.name}: {workload.description}\n"
        f"commit {code['commit']}{' with changes' if code['dirty'] else ''}\n"
        f"{workload.messages:,} messages of {workload.body_bytes:,} bytes, {metrics['msg_per_s']:,.0f} msg/s under "
        "cProfile, which makes function calls several times as slow as they are: compare the shares, not the times.\n"
    )
    parts = [head]
    for name, statistics in (("broker", profiles.broker), ("client", profiles.client)):
        text = io.StringIO()
        pstats.Stats(str(statistics), stream=text).strip_dirs().sort_stats("tottime").print_stats(FUNCTIONS)
        lines = [line.rstrip() for line in text.getvalue().splitlines() if str(statistics) not in line]
        parts.append(f"--- {name} ---\n" + "\n".join(lines).strip() + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts), encoding="utf-8")
