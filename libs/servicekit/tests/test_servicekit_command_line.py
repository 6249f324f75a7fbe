"""`python -m <service> reconcile`: what is printed, and what the exit code says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

import telemetry
from servicekit.config import ServiceConfig
from servicekit.errors import QueueUnreachableError
from servicekit.process import runner
from servicekit.process.reconciler import Reconciled


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ServiceConfig):
    PREFIX: ClassVar[str] = "SHOP_"

    database_url: str = field(default="sqlite+aiosqlite:///shop.db", repr=False)


@pytest.fixture(autouse=True)
def _without_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "configure", lambda *_: None)
    monkeypatch.setattr(telemetry, "shutdown", lambda: None)


def run(*arguments: str, result: Reconciled | Exception, has_reconciler: bool = True) -> tuple[int, list[bool]]:
    """The exit code, and whether each run was a dry one."""
    runs: list[bool] = []

    async def reconcile(_config: Config, is_dry_run: bool) -> Reconciled:
        runs.append(is_dry_run)
        if isinstance(result, Exception):
            raise result
        return result

    async def never(_config: Config) -> None:
        raise AssertionError(f"{arguments} is not about this")

    def from_environment(_environment: Mapping[str, str]) -> Config:
        return Config()

    code = runner.run_service(
        "shop",
        "",
        arguments,
        from_environment=from_environment,
        serve=never,
        run_migrations=never,
        reconcile=reconcile if has_reconciler else None,
    )
    return code, runs


@pytest.mark.parametrize(
    ("arguments", "result", "code", "out", "err"),
    [
        (("reconcile",), Reconciled((), ()), 0, "", ""),
        (("reconcile",), Reconciled(("a lost event",), ()), 3, "put right: a lost event\n", ""),
        (("reconcile", "--dry-run"), Reconciled(("a lost event",), ()), 3, "found: a lost event\n", ""),
        (("reconcile",), Reconciled(("x",), ("y: no",)), 1, "put right: x\n", "shop: y: no\n"),
        (("reconcile",), QueueUnreachableError("no queue"), 1, "", "shop: no queue\n"),
    ],
)
def test_the_exit_code_says_whether_anything_was_found(
    arguments: tuple[str, ...],
    result: Reconciled | Exception,
    code: int,
    out: str,
    err: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(*arguments, result=result) == (code, ["--dry-run" in arguments])
    told = capsys.readouterr()
    assert (told.out, told.err) == (out, err)


@pytest.mark.parametrize(
    ("arguments", "has_reconciler"),
    [(("serve", "--dry-run"), True), (("reconcile",), False), (("migrate", "--dry-run"), False)],
)
def test_what_a_service_cannot_do_is_rejected(arguments: tuple[str, ...], has_reconciler: bool) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*arguments, result=Reconciled((), ()), has_reconciler=has_reconciler)
    assert ended.value.code == 2
