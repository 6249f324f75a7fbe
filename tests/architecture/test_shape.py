"""The figures of `make shape` are counted as its text says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import shape

MODULE = """from __future__ import annotations

from os import (
    path,
    sep,
)


def outer() -> None:
    import json

    print(path, sep, json)
"""


def test_lines_imports_and_functions_of_a_package_are_counted(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "two.py").write_text("x = 1\n" * (shape.LARGE_LINES + 1), encoding="utf-8")
    assert shape.measure(["one.py", "two.py"], tmp_path) == shape.Cut(
        modules=2, lines=513, import_lines=5, median_lines=256, modules_over_500_lines=1, longest_function_lines=4
    )


@pytest.mark.timeout(300)  # 20 s of processor time
def test_a_path_is_what_this_repository_executes_of_it(tmp_path: Path) -> None:
    out = tmp_path / "shape.json"
    subprocess.run([sys.executable, shape.__file__, "--out", out], check=True, stdout=subprocess.DEVNULL)
    files = {name: set(path["files"]) for name, path in json.loads(out.read_text(encoding="utf-8"))["paths"].items()}
    assert "services/mq-broker/src/mq_broker/store/commit_log.py" in files["send"]
    assert not files["send"] & files[shape.CONSUME]
    assert "services/orders/src/orders/service/place_order.py" in files["POST /orders"]
