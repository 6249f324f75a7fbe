"""Unary calls to the current master."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from mqclient.connection.broker_connections import BrokerCalls
from mqclient.errors import BrokerUnreachableError
from osenv import SimClock

PATIENCE_S = 1.0
METHOD: Any = None


class Contradicting:
    """Routes of two name servers that never agree, and brokers that do not answer."""

    def __init__(self) -> None:
        self._answers = itertools.cycle(["a:1", "b:1"])
        self._address = "a:1"
        self.calls = 0

    def master_address(self, _broker_name: str) -> str:
        return self._address

    async def refresh_brokers(self) -> None:
        self._address = next(self._answers)

    def to_master(self, _broker_name: str) -> Contradicting:
        return self

    async def unary(self, _method: Any, _request: Any) -> Any:
        self.calls += 1
        raise BrokerUnreachableError(f"{self._address} does not answer")


@pytest.mark.parametrize("patience_s", [0.0, PATIENCE_S])
async def test_name_servers_that_contradict_each_other_are_not_believed_for_ever(patience_s: float) -> None:
    clock, world = SimClock(), Contradicting()
    calls = BrokerCalls(world, world, clock)  # type: ignore[arg-type]
    asking = asyncio.ensure_future(calls.to_master("broker-a", METHOD, None, patience_s=patience_s))
    await clock.advance(patience_s)
    with pytest.raises(BrokerUnreachableError):
        await asking
    assert clock.monotonic() == pytest.approx(patience_s)
    assert world.calls <= 6
