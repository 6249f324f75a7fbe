"""Memory that costs nothing until it is used."""

from __future__ import annotations

import mmap


def zeroed_memory(size: int) -> memoryview:
    """`size` bytes of zeros, writable. Pages that were never written take no memory; all goes with the last view."""
    return memoryview(mmap.mmap(-1, size))
