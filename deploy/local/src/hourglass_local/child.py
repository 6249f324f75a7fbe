"""The first thing that runs in a managed process: `python -m hourglass_local.child MODULE ARGUMENT...`.

Standard input is the leash: a pipe whose other end only the parent holds and never writes to. When the parent is gone,
however it died, the pipe ends and the child asks itself to stop. It then becomes MODULE, as `python -m MODULE` would.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import signal
import sys
import threading

# What these log goes to a file. structlog, httpx and Alembic would import libraries for coloured terminals anyhow,
# which takes a sixth of a broker's start, and use them only where they are installed.
_WITHOUT_TERMINAL = frozenset({"mq_namesrv", "mq_broker", "orders", "payments", "sandbox_gateway"})
_FOR_TERMINALS = ("rich", "pygments")


def _stop_with_the_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _import(program: str) -> None:
    """What a program imports stays: to look for garbage among it takes a sixth of a service's start."""
    gc.disable()
    importlib.import_module(f"{program}.__main__")
    gc.enable()
    del sys.modules[f"{program}.__main__"]  # it runs under another name, and the rest is there


if __name__ == "__main__":
    threading.Thread(target=_stop_with_the_parent, name="leash", daemon=True).start()
    del sys.argv[0]
    if sys.argv[0] in _WITHOUT_TERMINAL:
        sys.modules.update(dict.fromkeys(_FOR_TERMINALS))  # type: ignore[arg-type]  # None: as if it were not installed
        _import(sys.argv[0])
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
