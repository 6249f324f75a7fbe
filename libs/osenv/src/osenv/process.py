"""Signals of a process as events of its running loop, and the settings of its memory."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import mmap
import os
import signal
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


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


def zeroed_memory(size: int) -> memoryview:
    """`size` bytes of zeros, writable. Pages that were never written take no memory; all goes with the last view."""
    return memoryview(mmap.mmap(-1, size))


def machine_memory_bytes() -> int:
    """How much memory the machine has; 0 where the operating system does not say, as on Windows."""
    if sys.platform == "win32":
        return 0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def set_malloc_trim_threshold(kept_bytes_max: int, block_bytes_max: int) -> bool:
    """Have malloc use freed blocks of up to `block_bytes_max` again, and give back only what exceeds `kept_bytes_max`.

    By itself glibc gives much of what is freed back to the operating system at once. A process that takes and frees
    blocks of some 100 KiB all the time then pays a page fault for every 4 KiB of them. Returns whether the C library
    could be told, which is so for glibc alone; the limits are for each thread's heap.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, block_bytes_max) and mallopt(_M_TRIM_THRESHOLD, kept_bytes_max))


def freeze_garbage_collector() -> None:
    """Exempt all objects that exist now from later garbage collections.

    A full collection otherwise looks at every object of every imported module, which takes 15 to 25 ms in a process of
    this project; all that time nothing else runs. Another call frees exempted objects that have become unreachable.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
