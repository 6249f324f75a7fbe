"""The configuration of a service: variables with its prefix, parsed once into one frozen dataclass.

Each variable `X` may be given as `X_FILE`, the path of a file with its text, as secrets are.

@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ServiceConfig):
    PREFIX: ClassVar[str] = "ORDERS_"
    payment_window_ms: int = 1_800_000

Config(**read_environment(os.environ, "ORDERS_", COMMON_PARSERS | {"PAYMENT_WINDOW_MS": whole_number("...")}))
"""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar
from urllib.parse import urlsplit

from servicekit.auth import SECRET_MIN_CHARACTERS, parse_keys
from servicekit.http.limits import (
    DEFAULT_ADMISSION_LIMIT,
    DEFAULT_RATE_LIMIT,
    AdmissionLimit,
    RateLimit,
    parse_admission_limit,
    parse_rate_limit,
)

SQLITE_PREFIX = "sqlite+aiosqlite:///"
POSTGRESQL_PREFIX = "postgresql+asyncpg://"
FILE_SUFFIX = "_FILE"
DATABASE_POOL_SIZE = 10
POOL_SIZE_MAX = 100  # PostgreSQL's own default allows as many connections to all processes together
RECONCILE_ROWS_MAX = 2_000  # as many transactions as a broker lists
DEFAULT_TRUSTED_PROXIES = ("127.0.0.1/32", "::1/128")  # a proxy on the same machine, or in the same pod
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

# A parser gets the variable's whole name and its text, and returns the fields that it sets. Raises ConfigError.
Parser = Callable[[str, str], dict[str, Any]]


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the variable, its value and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """What every service needs. A subclass names its PREFIX, adds fields, and calls this `__post_init__` from its own.

    `auth_keys` are (name, secret): the first signs tokens, all of them verify. `rate_limit` is for each caller,
    `admission_limit` for all together; None is no limit. `database_pool_size` connections with PostgreSQL
    are open at once, at most. X-Forwarded-For and X-Forwarded-Proto are believed of the networks in `trusted_proxies`.

    Raises ConfigError when values do not go together. No error and no `repr` tells a secret: a subclass that gives
    `database_url` a default says `repr=False` again.
    """

    PREFIX: ClassVar[str]

    database_url: str = field(repr=False)
    database_pool_size: int = DATABASE_POOL_SIZE
    mq_url: str = "mq://127.0.0.1:9876"
    listen_host: str = "127.0.0.1"
    listen_port: int = 0  # 0 lets the operating system choose
    log_level: str = "INFO"
    auth_keys: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    rate_limit: RateLimit | None = DEFAULT_RATE_LIMIT
    admission_limit: AdmissionLimit | None = DEFAULT_ADMISSION_LIMIT
    trusted_proxies: tuple[str, ...] = DEFAULT_TRUSTED_PROXIES

    def __post_init__(self) -> None:
        check_database_url(f"{self.PREFIX}DATABASE_URL", self.database_url)
        if not 1 <= self.database_pool_size <= POOL_SIZE_MAX:
            raise self.error("DATABASE_POOL_SIZE", f"={self.database_pool_size}: allowed are 1 to {POOL_SIZE_MAX}")
        if "://" not in self.mq_url:
            raise self.error("MQ_URL", f"={self.mq_url!r}: allowed is a URL such as mq://127.0.0.1:9876")
        if not self.listen_host or not 0 <= self.listen_port <= 65535:
            raise self.error("LISTEN", f"={self.listen_host}:{self.listen_port}: allowed is host:port, port 0 to 65535")
        if self.log_level not in LOG_LEVELS:
            raise self.error("LOG_LEVEL", f"={self.log_level!r}: allowed are {', '.join(LOG_LEVELS)}")

    def require_auth_keys(self) -> None:
        """Raises ConfigError when there are none; for services that take tokens."""
        if not self.auth_keys:
            raise self.error(
                "AUTH_KEYS",
                f" is not set: it takes name:secret, with a secret of at least {SECRET_MIN_CHARACTERS} characters that"
                " all services share; make one with: python -m servicekit.token new-key",
            )

    @classmethod
    def error(cls, name: str, complaint: str) -> ConfigError:
        """The error that begins with the variable's whole name."""
        return ConfigError(f"{cls.PREFIX}{name}{complaint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilingConfig(ServiceConfig):
    """What a service with a reconciler needs. A round comes every `reconcile_interval_ms` (0: none), looks at what has
    not moved for `reconcile_after_ms`, and reads pages of `reconcile_rows_max` rows.
    """

    reconcile_interval_ms: int = 30_000
    reconcile_after_ms: int = 60_000
    reconcile_rows_max: int = 1_000

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        if self.reconcile_interval_ms < 0:
            raise self.error("RECONCILE_INTERVAL_MS", f"={self.reconcile_interval_ms}: allowed are 0 (off) and more")
        if self.reconcile_after_ms < 1:
            raise self.error("RECONCILE_AFTER_MS", f"={self.reconcile_after_ms}: at least 1 is allowed")
        if not 1 <= self.reconcile_rows_max <= RECONCILE_ROWS_MAX:
            raise self.error("RECONCILE_ROWS_MAX", f"={self.reconcile_rows_max}: allowed are 1 to {RECONCILE_ROWS_MAX}")


def read_environment(environment: Mapping[str, str], prefix: str, parsers: Mapping[str, Parser]) -> dict[str, Any]:
    """The fields that the variables with `prefix` set; others are not looked at. `parsers` have names without prefix.

    Raises ConfigError, for an unknown variable with the known one that is nearest, and for one that is given twice.
    """
    known = {prefix + name: parser for name, parser in parsers.items()}
    values: dict[str, Any] = {}
    for name, text in sorted(environment.items()):
        if not name.startswith(prefix):
            continue
        base = name.removesuffix(FILE_SUFFIX)
        if name not in known and base in known:
            if base in environment:
                raise ConfigError(f"both {base} and {name} are set; one of the two is allowed")
            values |= known[base](base, _content(name, text))
            continue
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"unknown configuration key {name}; {hint}")
        values |= known[name](name, text)
    return values


def check_database_url(name: str, url: str) -> None:
    """Raises ConfigError unless it is the URL of an SQLite file or of a PostgreSQL database; `name` is the variable's.

    The error repeats no password.
    """
    if url.startswith(POSTGRESQL_PREFIX):
        if _is_postgresql(url):
            return
        shown = POSTGRESQL_PREFIX + "..."  # the password may be anywhere in what cannot be understood
    else:
        path = url.removeprefix(SQLITE_PREFIX)
        if path not in ("", url, ":memory:"):
            return
        shown = url if "@" not in url else "..."
    raise ConfigError(
        f"{name}={shown!r}: allowed are {SQLITE_PREFIX}<path of a file>"
        f" and {POSTGRESQL_PREFIX}user[:password]@host[:port]/database"
    )


def _is_postgresql(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    database = parts.path.removeprefix("/")
    is_complete = bool(parts.username and parts.hostname and database) and "/" not in database
    return is_complete and port != 0 and not parts.query and not parts.fragment


def _content(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{name}={path!r} cannot be read: {error.strerror}") from error
    except ValueError as error:  # no UTF-8
        raise ConfigError(f"{name}={path!r} cannot be read: it is not a text file") from error


def is_http_url(url: str) -> bool:
    """Whether it begins with http:// or https:// and names a host."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def as_text(name: str) -> Parser:
    """The text as it is, for the field `name`."""
    return lambda _variable, text: {name: text}


def as_texts(name: str) -> Parser:
    """Texts with commas between them, for the field `name`."""
    return lambda _variable, text: {name: tuple(one.strip() for one in text.split(","))}


def whole_number(name: str) -> Parser:
    """A whole number, for the field `name`; its range is for the dataclass to check."""

    def parse(variable: str, text: str) -> dict[str, Any]:
        try:
            return {name: int(text)}
        except ValueError:
            raise ConfigError(f"{variable}={text!r} is not a whole number") from None

    return parse


def _listen(name: str, text: str) -> dict[str, Any]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        raise ConfigError(f"{name}={text!r}: allowed is host:port, such as 127.0.0.1:8001")
    return {"listen_host": host, "listen_port": int(port)}


def _auth_keys(name: str, text: str) -> dict[str, Any]:
    try:
        return {"auth_keys": parse_keys(text)}
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error


def _rate_limit(name: str, text: str) -> dict[str, Any]:
    try:
        return {"rate_limit": parse_rate_limit(text)}
    except ValueError as error:
        raise ConfigError(f"{name}={text!r}: {error}") from error


def _admission_limit(name: str, text: str) -> dict[str, Any]:
    try:
        return {"admission_limit": parse_admission_limit(text)}
    except ValueError as error:
        raise ConfigError(f"{name}={text!r}: {error}") from error


def _trusted_proxies(name: str, text: str) -> dict[str, Any]:
    try:
        return {"trusted_proxies": () if text == "none" else tuple(map(_network, text.split(",")))}
    except ValueError as error:
        raise ConfigError(
            f"{name}={text!r}: {error}; allowed are addresses and networks, such as 10.0.0.7,192.168.0.0/16, or none"
        ) from None


def _network(text: str) -> str:
    network = ipaddress.ip_network(text.strip())
    if network.prefixlen == 0:
        raise ValueError(f"{network} is every address, so that any client could name any address")
    return str(network)


COMMON_PARSERS: Mapping[str, Parser] = MappingProxyType(
    {
        "DATABASE_URL": as_text("database_url"),
        "DATABASE_POOL_SIZE": whole_number("database_pool_size"),
        "MQ_URL": as_text("mq_url"),
        "LISTEN": _listen,
        "LOG_LEVEL": lambda _name, text: {"log_level": text.upper()},
        "AUTH_KEYS": _auth_keys,
        "RATE_LIMIT": _rate_limit,
        "ADMISSION_LIMIT": _admission_limit,
        "TRUSTED_PROXIES": _trusted_proxies,
    }
)

RECONCILING_PARSERS: Mapping[str, Parser] = MappingProxyType(
    {
        **COMMON_PARSERS,
        "RECONCILE_INTERVAL_MS": whole_number("reconcile_interval_ms"),
        "RECONCILE_AFTER_MS": whole_number("reconcile_after_ms"),
        "RECONCILE_ROWS_MAX": whole_number("reconcile_rows_max"),
    }
)
