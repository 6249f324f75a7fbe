"""What `locust -f` is given. The environment says where the plan is; the driver starts this: `make load`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gevent  # type: ignore[import-untyped]
from gevent.os import make_nonblocking, nb_read  # type: ignore[import-untyped]
from locust import LoadTestShape, events

from hourglass_loadtest.users.plan import LEASH_VARIABLE, PLAN_VARIABLE, LoadPlan, RecordWriter, stage_at, users_of
from hourglass_loadtest.users.visits import VISITORS, Abandoner, Browser, DoubleClicker, LastSecondPayer, Payer, Shopper

__all__ = ["Abandoner", "Browser", "DoubleClicker", "LastSecondPayer", "Payer"]  # these are what Locust looks for

SPAWN_RATE_PER_S = 200.0
METER_INTERVAL_S = 1.0

if PLAN_VARIABLE not in os.environ:
    raise SystemExit(f"{PLAN_VARIABLE} is not set: it is the path of a plan; `make load` writes one and starts Locust")
PLAN = LoadPlan.read(Path(os.environ[PLAN_VARIABLE]))
Shopper.plan = PLAN
Shopper.records = RecordWriter(Path(PLAN.records))
for visitor in VISITORS:
    visitor.weight = PLAN.mix.get(visitor.__name__, 0)
del visitor  # a second name of the same class is one too many for Locust

if PLAN.stages:

    class Stages(LoadTestShape):
        """As many users as the plan's stage needs."""

        def tick(self) -> tuple[int, float] | None:
            stage = stage_at(PLAN.stages, float(self.get_run_time()))  # type: ignore[no-untyped-call]
            return None if stage is None else (users_of(stage, PLAN.pace_s), SPAWN_RATE_PER_S)


@events.init.add_listener  # type: ignore[untyped-decorator]
def _meter(**_: Any) -> None:
    """Write down every second what this process has used."""

    def meter() -> None:
        while True:
            Shopper.records.generator(time.time(), time.process_time())
            gevent.sleep(METER_INTERVAL_S)

    gevent.spawn(meter)


@events.init.add_listener  # type: ignore[untyped-decorator]
def _stop_with_the_driver(**_: Any) -> None:
    """hourglass_local.child is of no use here: its thread would be there before gevent changes what threads are."""
    if LEASH_VARIABLE not in os.environ:
        return
    leash = int(os.environ[LEASH_VARIABLE])
    make_nonblocking(leash)

    def watch() -> None:
        while nb_read(leash, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    gevent.spawn(watch)


@events.quitting.add_listener  # type: ignore[untyped-decorator]
def _close(**_: Any) -> None:
    Shopper.records.close()
