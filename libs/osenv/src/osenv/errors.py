"""Errors that the ports add to the operating system's own."""

from __future__ import annotations


class SyncError(OSError):
    """A sync failed: the operating system may have forgotten what it should have written, and calls it clean.

    A second sync of the same file would report success although the bytes are gone (RELIABILITY.md: never a second
    try). `errno` and `strerror` are those of the failed call.
    """
