"""A replica that hangs: how long the pairs of the stack and of Kubernetes wait for it, by the broker's own
decisions.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mq_broker.config import FORMAT, BrokerConfig
from mq_broker.core.replica_state import InSyncSet
from mq_broker.replication.in_sync import Acknowledged, Connected, Decide, InSyncLedger, Passed, Stored
from mqproto.config_source import ConfigSource

DEPLOY = Path(__file__).parents[1]
FILES = sorted(
    path for folder in ("docker/conf", "kubernetes/base/conf") for path in (DEPLOY / folder).glob("broker-*")
)
MASTER, REPLICA = "master", "replica"


def config(path: Path) -> BrokerConfig:
    values, _ = ConfigSource(FORMAT, file=path).read()
    return values


def out_after_s(config: BrokerConfig, hangs_for_s: float) -> float | None:
    """Seconds after which the master decides to go on without a replica that hangs; None when it comes back before."""
    beat_s = config.ha_send_heartbeat_interval / 1000
    ledger = InSyncLedger(
        MASTER, True, config.min_in_sync_replicas, config.ha_max_time_slave_not_catchup / 1000, InSyncSet(), 0
    )
    ledger.begin(InSyncSet(1, frozenset({MASTER, REPLICA})), 0, now=0.0)
    ledger.step(Connected(REPLICA, 0), 0.0, 0)
    now, log_end = 0.0, 0
    while now < hangs_for_s:
        now, log_end = now + beat_s, log_end + 1_000
        actions = ledger.step(Stored(log_end), now, log_end) + ledger.step(Passed(), now, log_end)
        if any(isinstance(one, Decide) for one in actions):
            return now
    assert not any(isinstance(one, Decide) for one in ledger.step(Acknowledged(REPLICA, log_end), now, log_end))
    return None


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-3:]))
def test_sends_wait_for_six_seconds_at_most(path: Path) -> None:
    waits_s = out_after_s(config(path), hangs_for_s=60)
    assert waits_s is not None
    assert waits_s <= 6


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-3:]))
def test_a_pause_of_four_seconds_costs_no_copy(path: Path) -> None:
    assert out_after_s(config(path), hangs_for_s=4) is None
