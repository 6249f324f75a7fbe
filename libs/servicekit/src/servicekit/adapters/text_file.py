"""Text from files, such as the secrets that an orchestrator puts beside a service."""

from __future__ import annotations

from pathlib import Path


def read_text_file(path: str) -> str:
    """The text, without white space around it. Raises OSError with the reason, also for what is no UTF-8."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except ValueError as error:
        raise OSError(0, "it is not a text file") from error
