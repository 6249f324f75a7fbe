"""The committed stubs are what the .proto files and the pinned tools give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MQPROTO = ROOT / "libs/mqproto"


def _content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted((folder / "hourglass").rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_stubs_are_those_of_the_proto_files(tmp_path: Path) -> None:
    command = [sys.executable, str(MQPROTO / "generate_stubs.py"), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    fresh, committed = _content(tmp_path), _content(MQPROTO / "src")
    assert len(fresh) == 4 * len(list(MQPROTO.glob("proto/hourglass/mq/v1/*.proto")))
    assert sorted(fresh) == sorted(committed)
    stale = [name for name in fresh if fresh[name] != committed[name]]
    assert not stale, f"run make proto; these differ: {stale}"
