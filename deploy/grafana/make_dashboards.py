"""Writes dashboards/*.json: python deploy/grafana/make_dashboards.py

shop_dashboard.py and queue_dashboard.py say what they show, panels.py how Grafana writes it. A test holds that the
files are what this makes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from queue_dashboard import QUEUE
from shop_dashboard import SHOP

FOLDER = Path(__file__).parent / "dashboards"


def texts() -> dict[str, str]:
    """File name -> its text."""
    return {f"{name}.json": json.dumps(one.json(), indent=2) + "\n" for name, one in (("shop", SHOP), ("queue", QUEUE))}


def main() -> int:
    """Write them all."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
