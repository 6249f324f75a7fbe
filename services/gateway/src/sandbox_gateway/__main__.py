"""`python -m sandbox_gateway` serves; `... migrate` brings the database to this version and ends."""

from __future__ import annotations

import sys

from sandbox_gateway import app
from sandbox_gateway.config import from_environment
from servicekit.process.runner import run_service


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 after an orderly stop, 1 after a failure, 2 for a configuration that cannot be used."""
    return run_service(
        "sandbox_gateway",
        "A payment gateway that moves no real money. Configuration: GATEWAY_* variables.",
        arguments,
        from_environment=from_environment,
        serve=app.serve,
        run_migrations=app.run_migrations,
        service_name=app.SERVICE_NAME,
    )


if __name__ == "__main__":
    sys.exit(main())
