"""`python -m orders` serves; `python -m orders migrate` brings the database to this version and ends;
`python -m orders reconcile` puts right what messages should have done.
"""

from __future__ import annotations

import sys

from orders import app
from orders.config import from_environment
from servicekit.process.runner import run_service


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 after an orderly stop, 1 after a failure, 2 for a configuration that cannot be used."""
    return run_service(
        "orders",
        "Orders that close by themselves when they are not paid. Configuration: ORDERS_* variables.",
        arguments,
        from_environment=from_environment,
        serve=app.serve,
        run_migrations=app.run_migrations,
        reconcile=app.reconcile,
    )


if __name__ == "__main__":
    sys.exit(main())
