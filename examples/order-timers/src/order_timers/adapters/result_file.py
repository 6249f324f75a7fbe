"""The comparison as a JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Raises OSError."""
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
