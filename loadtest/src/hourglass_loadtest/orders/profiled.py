"""Runs a module under cProfile: `python -m hourglass_loadtest.orders.profiled FILE MODULE ARGUMENT...`.

SIGUSR2 begins the profile, so that start-up and warm-up are not in it; its statistics are in FILE when MODULE ends.
What is counted is processor time, in user and system mode: on a machine with more to do than cores, wall-clock time
would show which was waiting for a core.
"""

from __future__ import annotations

import cProfile
import runpy
import signal
import sys
import time

BEGIN = signal.SIGUSR2


def main() -> None:
    """Raises what the module raises."""
    profile = cProfile.Profile(time.thread_time)
    signal.signal(BEGIN, lambda *_: profile.enable())
    _, path, module, *arguments = sys.argv
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        profile.disable()
        profile.dump_stats(path)


if __name__ == "__main__":
    main()
