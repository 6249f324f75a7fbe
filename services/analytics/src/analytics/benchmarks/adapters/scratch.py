"""A folder for the time of a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Gone afterwards, with everything in it. Raises OSError."""
    with TemporaryDirectory(prefix="hourglass-bench-") as name:
        yield Path(name)
