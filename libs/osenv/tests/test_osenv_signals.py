"""Signals as events of the loop."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from osenv.process import reload_event, stop_event

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no such signals")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_process_hears_that_it_is_to_stop(number: signal.Signals) -> None:
    stop, reload = stop_event(), reload_event()
    signal.raise_signal(number)
    async with asyncio.timeout(5):
        await stop.wait()
    assert not reload.is_set()


async def test_a_process_hears_each_time_that_it_is_to_read_its_configuration_again() -> None:
    stop, reload = stop_event(), reload_event()
    for _ in range(2):
        signal.raise_signal(signal.SIGHUP)
        async with asyncio.timeout(5):
            await reload.wait()
        reload.clear()
    assert not stop.is_set()
