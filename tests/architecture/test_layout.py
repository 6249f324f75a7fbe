"""The folders that the project's users have fixed (mechanism U1), and a line for each in ARCHITECTURE.md."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIXED = (
    "docker-compose.yml", "services/mq-namesrv", "services/mq-broker", "services/orders", "services/payments",
    "libs/mqclient", "deploy", "loadtest", "tests",
)  # fmt: skip
INSTALLABLE = ("libs", "services", "tools", "examples")


@pytest.mark.mechanism("U1")
@pytest.mark.parametrize("name", FIXED)
def test_what_was_fixed_is_there_and_is_explained(name: str) -> None:
    assert (ROOT / name).exists()
    assert name in (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


@pytest.mark.mechanism("U1")
def test_each_library_and_service_can_be_installed_alone() -> None:
    folders = [path for parent in INSTALLABLE for path in (ROOT / parent).iterdir() if (path / "src").is_dir()]
    assert len(folders) > len(FIXED)
    for folder in folders:
        assert (folder / "pyproject.toml").is_file(), folder
        packages = [
            path for path in (folder / "src").iterdir() if path.is_dir() and not path.name.endswith(".egg-info")
        ]
        assert packages, folder
