"""What a process is asked by signals, as events of its running loop."""

from __future__ import annotations

import asyncio
import signal
import sys


def stop_event() -> asyncio.Event:
    """An event that is set when the process is asked to stop: by SIGTERM or SIGINT."""
    return _event(signal.SIGTERM, signal.SIGINT)


def reload_event() -> asyncio.Event:
    """An event that is set when the process is asked to read its configuration again: by SIGHUP. Never on Windows."""
    return asyncio.Event() if sys.platform == "win32" else _event(signal.SIGHUP)


def _event(*numbers: signal.Signals) -> asyncio.Event:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in numbers:
        if sys.platform == "win32":  # its event loops know no signal handlers
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(asked.set))
        else:
            loop.add_signal_handler(number, asked.set)
    return asked
