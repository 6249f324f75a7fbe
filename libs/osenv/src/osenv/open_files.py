"""The operating system's limit on open files of this process, sockets included."""

from __future__ import annotations

import sys

_WINDOWS_OPEN_FILES = 8_192  # of the C runtime at most; sockets are not counted there


def raise_open_files_limit(wanted: int) -> int:
    """Raise the limit to `wanted` as far as this process may; return the limit. It is never lowered.

    Shells start programs with 1,024 for the sake of select(), and allow them more.
    """
    if sys.platform == "win32":
        return _WINDOWS_OPEN_FILES
    import resource  # noqa: PLC0415 - not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised
