"""Being asked to stop: SIGTERM and SIGINT as an event."""

from __future__ import annotations

import asyncio
import signal
import sys


def stop_event() -> asyncio.Event:
    """An event of the running loop that is set when the process is asked to stop."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        if sys.platform == "win32":  # its event loops know no signal handlers
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(asked.set))
        else:
            loop.add_signal_handler(number, asked.set)
    return asked
