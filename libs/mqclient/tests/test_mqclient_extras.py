"""SQLAlchemy and FastAPI are optional: a program that does not import their modules needs neither."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import mqclient, mqclient.sync, mqclient.testing, mqclient.transport
print([name for name in ("sqlalchemy", "fastapi", "starlette") if name in sys.modules])
"""


def test_nothing_else_of_the_client_imports_an_optional_dependency() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
