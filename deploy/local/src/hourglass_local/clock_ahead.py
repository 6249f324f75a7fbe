"""A program whose machine has a wrong wall clock: `python -m hourglass_local.clock_ahead MS MODULE ARGUMENT...`.

What it asks `time.time` and `time.time_ns` is MS milliseconds ahead (or, below 0, behind); durations are right. It then
becomes MODULE, as `python -m MODULE` would.
"""

from __future__ import annotations

import runpy
import sys
import time

NS_PER_MS = 1_000_000


def set_ahead(ahead_ms: int) -> None:
    """For this whole process, from now on."""
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + ahead_ms / 1000
    time.time_ns = lambda: real_ns() + ahead_ms * NS_PER_MS


if __name__ == "__main__":
    set_ahead(int(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
