"""What can be asked of a load: options of the command line, and LOAD_* variables for a shop that runs already."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hourglass_loadtest.shop.keeping import KEEP_MIB
from hourglass_loadtest.users.plan import Stage, parse_stages, usual_stages
from hourglass_local.delay_levels import payment_window_ms, with_payment_window

REPORT_FOLDER = Path(".load")
SQLITE, POSTGRESQL = "sqlite", "postgresql"
SEED, RATE_PER_S, SECONDS = 16, 20.0, 300.0
PAYMENT_WINDOW = "20s"
PAGE_PORT = 8089
PREFIX = "LOAD_"
# A shop that runs already: orders and payments are needed, the others tell more.
URL_VARIABLES = ("ORDERS_URL", "PAYMENTS_URL", "AUTH_KEYS_FILE", "QUEUE_URL")
DATABASE_VARIABLES = ("ORDERS_DATABASE_URL", "PAYMENTS_DATABASE_URL", "GATEWAY_DATABASE_URL")


class OptionsError(ValueError):
    """An option or a variable that cannot be used; the message names it and says what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """A shop that runs already. `databases` are URLs by service, or nothing: then invariants are not checked."""

    orders_url: str
    payments_url: str
    auth_keys_file: Path
    queue_url: str | None = None
    databases: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """One load. `stages` empty: Locust's page says how many users there are."""

    stages: Sequence[Stage]
    database: str = SQLITE
    pair: bool = False
    payment_window: str = PAYMENT_WINDOW
    seed: int = SEED
    page_port: int | None = None
    outside: Outside | None = None
    folder: Path = REPORT_FOLDER
    keep_mib: int = KEEP_MIB
    out: Path | None = None


def add_options(parser: argparse.ArgumentParser, *, rate_per_s: float, seconds: float) -> None:
    """Those that every command has."""
    parser.add_argument("--rate", type=_positive, default=rate_per_s, metavar="N", help="visits a second; %(default)g")
    parser.add_argument("--seconds", type=_positive, default=seconds, metavar="S", help="%(default)g")
    parser.add_argument(
        "--stages", type=_stages, metavar="TEXT", help="instead of both, such as 10x30,20x60: see README"
    )
    parser.add_argument(
        "--database", choices=(SQLITE, POSTGRESQL), default=SQLITE, help="of local processes; %(default)s"
    )
    parser.add_argument("--pair", action="store_true", help="a broker with a slave instead of a single one")
    parser.add_argument(
        "--payment-window", type=_window, default=PAYMENT_WINDOW, metavar="S", help="level 16; %(default)s, not 30m"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="of what buyers do; %(default)s")
    parser.add_argument("--folder", type=Path, default=REPORT_FOLDER, help="of the report; %(default)s")
    parser.add_argument(
        "--keep", type=_whole, default=KEEP_MIB, metavar="MIB", help="leave a store up to this size; %(default)s"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="a copy of the results, as in docs/evidence")


def read_options(options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> LoadOptions:
    """Raises OptionsError."""
    page_port = getattr(options, "page", None)
    stages = options.stages
    if stages is None:
        stages = [] if page_port is not None else usual_stages(options.rate, options.seconds)
    return LoadOptions(
        stages=stages,
        database=options.database,
        pair=options.pair,
        payment_window=options.payment_window,
        seed=options.seed,
        page_port=page_port,
        outside=read_outside(environment),
        folder=options.folder,
        keep_mib=options.keep,
        out=options.out,
    )


def read_outside(environment: Mapping[str, str]) -> Outside | None:
    """The shop that LOAD_* variables name, or None without any. Raises OptionsError."""
    known = {PREFIX + name: name for name in (*URL_VARIABLES, *DATABASE_VARIABLES)}
    values = {known[name]: text for name, text in environment.items() if name in known}
    if unknown := sorted(name for name in environment if name.startswith(PREFIX) and name not in known):
        raise OptionsError(f"unknown variable {unknown[0]}; known are {', '.join(known)}")
    if not values:
        return None
    if missing := [PREFIX + name for name in URL_VARIABLES[:3] if not values.get(name)]:
        raise OptionsError(f"{', '.join(missing)} is not set; a shop that runs already needs it")
    for name in URL_VARIABLES[:2]:
        if not values[name].startswith(("http://", "https://")):
            raise OptionsError(f"{PREFIX}{name}={values[name]!r}: allowed is a URL such as http://127.0.0.1:8001")
    databases = {name: values[name] for name in DATABASE_VARIABLES if name in values}
    if databases and len(databases) < len(DATABASE_VARIABLES):
        missing = [PREFIX + name for name in DATABASE_VARIABLES if name not in databases]
        raise OptionsError(f"{', '.join(missing)} is not set; the invariants need all databases, or none is given")
    return Outside(
        orders_url=values["ORDERS_URL"].rstrip("/"),
        payments_url=values["PAYMENTS_URL"].rstrip("/"),
        auth_keys_file=Path(values["AUTH_KEYS_FILE"]),
        queue_url=values.get("QUEUE_URL"),
        databases={name.partition("_")[0].lower(): url for name, url in databases.items()},
    )


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 0 or more")
    return int(text)


def _stages(text: str) -> list[Stage]:
    try:
        return parse_stages(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _window(text: str) -> str:
    try:
        payment_window_ms(with_payment_window(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text
