"""Orders whose machine's clock is wrong: what it says elsewhere is of its database's time, as what it writes down."""

from __future__ import annotations

from pathlib import Path

import jwt
import pytest

from orders import app
from orders.adapters.outside import HttpPayments
from orders.config import Config
from orders.testing import AUTH_KEYS
from osenv import Clock, SimClock
from servicekit.auth import Tokens
from servicekit.process import runner
from servicekit.process.queue import MqConnection
from servicekit.process.reconciler import Reconciled
from servicekit.process.runner import Compose, Service
from servicekit.sql.database import Database, DatabaseClock

AHEAD_MS = 400_000


async def test_payments_is_asked_with_a_token_of_the_database_s_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Payments takes no token that was issued in the future: such an instance of orders moved no order on."""
    made: list[Tokens] = []

    class Watched(HttpPayments):
        def __init__(self, url: str, tokens: Tokens, clock: Clock) -> None:
            super().__init__(url, tokens, clock)
            made.append(tokens)

    async def compose_only(service: Service, config: Config, compose: Compose, *, is_dry_run: bool) -> Reconciled:
        assert is_dry_run
        machine, database = SimClock(), Database(config.database_url)
        clock = DatabaseClock(machine, database)
        clock.correct(machine.wall_ms() - AHEAD_MS, machine.monotonic(), 0.0)
        queue = MqConnection(config.mq_url, clock, group=service.name, topics=service.topics, storage=database.health)
        compose(database, queue, clock)
        await database.dispose()
        issued_s = jwt.decode(made[-1].issue("orders", ()), options={"verify_signature": False})["iat"]
        assert issued_s == (machine.wall_ms() - AHEAD_MS) // 1000
        return Reconciled((), ())

    monkeypatch.setattr(app, "HttpPayments", Watched)
    monkeypatch.setattr(runner, "reconcile", compose_only)
    await app.reconcile(
        Config(database_url=f"sqlite+aiosqlite:///{tmp_path}/orders.db", auth_keys=AUTH_KEYS), is_dry_run=True
    )
    assert len(made) == 1
