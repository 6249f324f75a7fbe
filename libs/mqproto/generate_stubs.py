"""Generate the Python stubs and their types from proto/ into a folder: `python generate_stubs.py [OUT]`.

The output depends on the .proto files and the pinned tools alone; a test compares it with what is committed.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).parent
PROTO = HERE / "proto"


def generate(out: Path) -> None:
    """Write hourglass/mq/v1/*_pb2*.py and .pyi below `out`. Raises RuntimeError when protoc rejects the sources."""
    tools = Path(sys.executable).parent
    sources = [str(path) for path in sorted(PROTO.glob("hourglass/mq/v1/*.proto"))]
    arguments = [
        "protoc",
        f"-I{PROTO}",
        f"-I{files('grpc_tools') / '_proto'}",
        *(f"--plugin=protoc-gen-{name}={tools / f'protoc-gen-{name}'}" for name in ("mypy", "mypy_grpc")),
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_out=quiet:{out}",
        f"--mypy_grpc_out=quiet:{out}",
        *sources,
    ]
    if (status := protoc.main(arguments)) != 0:
        raise RuntimeError(f"protoc ended with {status}; its message is above")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "src")
