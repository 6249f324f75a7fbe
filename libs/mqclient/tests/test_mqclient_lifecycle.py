"""The life-cycle table, every pair of it (mechanism L1)."""

from __future__ import annotations

import itertools

import pytest

from mqclient import IllegalStateError, ServiceState
from mqclient.lifecycle import TRANSITIONS, Lifecycle, LifecycleEvent


@pytest.mark.mechanism("L1")
@pytest.mark.parametrize(("state", "event"), [*itertools.product(ServiceState, LifecycleEvent)])
def test_every_pair_follows_the_table_or_raises_and_changes_nothing(state: ServiceState, event: LifecycleEvent) -> None:
    lifecycle = Lifecycle("thing")
    lifecycle.state = state
    following = TRANSITIONS.get((state, event))
    if following is None:
        with pytest.raises(IllegalStateError, match=f"thing cannot {event.value}: it is in state {state.value}"):
            lifecycle.move(event)
        assert lifecycle.state is state
    else:
        lifecycle.move(event)
        assert lifecycle.state is following


def test_start_that_raises_half_way_leaves_start_failed() -> None:
    lifecycle = Lifecycle("thing")
    lifecycle.move(LifecycleEvent.START)
    assert lifecycle.state is ServiceState.START_FAILED
    with pytest.raises(IllegalStateError):
        lifecycle.move(LifecycleEvent.START)


def test_require_running_names_the_state() -> None:
    lifecycle = Lifecycle("thing")
    with pytest.raises(IllegalStateError, match="CREATE_JUST"):
        lifecycle.require_running()
