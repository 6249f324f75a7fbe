"""`mqadmin`, or `python -m mqadmin`."""

from __future__ import annotations

import logging

from mqadmin.app import app


def main() -> None:
    """Run the command line and end the process; what the client logs stays inside."""
    logging.getLogger().addHandler(logging.NullHandler())
    app(prog_name="mqadmin")


if __name__ == "__main__":
    main()
