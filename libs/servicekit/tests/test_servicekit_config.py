"""Variables with a prefix become a frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from servicekit.config import (
    COMMON_PARSERS,
    RECONCILING_PARSERS,
    ConfigError,
    ReconcilingConfig,
    ServiceConfig,
    as_text,
    read_environment,
    whole_number,
)
from servicekit.http.limits import DEFAULT_ADMISSION_LIMIT, DEFAULT_RATE_LIMIT, AdmissionLimit, RateLimit

PARSERS = {**COMMON_PARSERS, "CITY": as_text("city"), "DOORS": whole_number("doors")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ServiceConfig):
    PREFIX: ClassVar[str] = "SHOP_"

    database_url: str = field(default="sqlite+aiosqlite:///shop.db", repr=False)
    city: str = ""
    doors: int = 1

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        if self.doors < 1:
            raise self.error("DOORS", f"={self.doors}: at least 1 is allowed")


def read(**variables: str) -> Config:
    return Config(**read_environment(variables, Config.PREFIX, PARSERS))


def test_what_has_another_prefix_is_not_looked_at() -> None:
    assert read(PATH="/bin", SHOPX="1", shop_doors="2") == Config()


def test_every_variable_sets_its_field() -> None:
    config = read(
        SHOP_DATABASE_URL="sqlite+aiosqlite:////tmp/x.db",
        SHOP_MQ_URL="memory://shop",
        SHOP_LISTEN="[::1]:80",
        SHOP_LOG_LEVEL="debug",
        SHOP_CITY="Hangzhou",
        SHOP_DOORS="2",
    )
    assert (config.database_url, config.mq_url) == ("sqlite+aiosqlite:////tmp/x.db", "memory://shop")
    assert (config.listen_host, config.listen_port, config.log_level) == ("[::1]", 80, "DEBUG")
    assert (config.city, config.doors) == ("Hangzhou", 2)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("SHOP_DORS", "1", "unknown configuration key SHOP_DORS; did you mean SHOP_DOORS?"),
        ("SHOP_QQQQQQQ", "1", "known are SHOP_DATABASE_URL, SHOP_DATABASE_POOL_SIZE, SHOP_MQ_URL, SHOP_LISTEN"),
        ("SHOP_DOORS", "two", "SHOP_DOORS='two' is not a whole number"),
        ("SHOP_DOORS", "0", "SHOP_DOORS=0: at least 1"),
        ("SHOP_DATABASE_URL", "sqlite:///x", "SHOP_DATABASE_URL='sqlite:///x': allowed are sqlite"),
        ("SHOP_DATABASE_URL", "sqlite+aiosqlite:///:memory:", "allowed are sqlite+aiosqlite:///<path of a file>"),
        ("SHOP_DATABASE_URL", "postgresql+asyncpg://u:s3cret@/shop", "SHOP_DATABASE_URL='postgresql+asyncpg://...'"),
        (
            "SHOP_DATABASE_URL",
            "postgresql+asyncpg://u@host",
            "postgresql+asyncpg://user[:password]@host[:port]/database",
        ),
        ("SHOP_DATABASE_URL", "postgresql+asyncpg://u@host:x/shop", "SHOP_DATABASE_URL='postgresql+asyncpg://...'"),
        ("SHOP_DATABASE_URL", "postgresql://u:s3cret@host/shop", "SHOP_DATABASE_URL='...': allowed are sqlite"),
        ("SHOP_DATABASE_POOL_SIZE", "0", "SHOP_DATABASE_POOL_SIZE=0: allowed are 1 to 100"),
        ("SHOP_AUTH_KEYS", "s3cret", "SHOP_AUTH_KEYS: key 1 is not of the form name:secret"),
        ("SHOP_AUTH_KEYS", "k1:s3cret", "SHOP_AUTH_KEYS: the secret of the key 'k1' has 6 characters; at least 32"),
        ("SHOP_ADMISSION_LIMIT", "16", "SHOP_ADMISSION_LIMIT='16': allowed is requests/milliseconds, such as 16/500"),
        ("SHOP_ADMISSION_LIMIT", "0/5", "SHOP_ADMISSION_LIMIT='0/5': 1 to 1000 requests may be in work at once, not 0"),
        ("SHOP_RATE_LIMIT", "fast", "SHOP_RATE_LIMIT='fast': allowed is requests/seconds, such as 600/60, or off"),
        (
            "SHOP_TRUSTED_PROXIES",
            "proxy.example",
            "SHOP_TRUSTED_PROXIES='proxy.example': 'proxy.example' does not appear to be an IPv4 or IPv6 network;"
            " allowed are addresses and networks, such as 10.0.0.7,192.168.0.0/16, or none",
        ),
        ("SHOP_TRUSTED_PROXIES", "10.0.0.1/8", "10.0.0.1/8 has host bits set; allowed are"),
        ("SHOP_TRUSTED_PROXIES", "10.0.0.1,", "'' does not appear to be an IPv4 or IPv6 network; allowed are"),
        ("SHOP_TRUSTED_PROXIES", "*", "'*' does not appear to be an IPv4 or IPv6 network; allowed are"),
        (
            "SHOP_TRUSTED_PROXIES",
            "::/0",
            "::/0 is every address, so that any client could name any address; allowed are",
        ),
        ("SHOP_CITY_FILE", "/no/such/file", "SHOP_CITY_FILE='/no/such/file' cannot be read: No such file"),
        ("SHOP_MQ_URL", "host", "SHOP_MQ_URL='host': allowed is a URL"),
        ("SHOP_LISTEN", "host", "SHOP_LISTEN='host': allowed is host:port"),
        ("SHOP_LISTEN", "host:65536", "SHOP_LISTEN=host:65536: allowed is host:port, port 0 to 65535"),
        ("SHOP_LOG_LEVEL", "loud", "SHOP_LOG_LEVEL='LOUD': allowed are DEBUG"),
    ],
)
def test_what_cannot_be_used_is_rejected_by_name(name: str, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as rejected:
        read(**{name: text})
    assert complaint in str(rejected.value)
    assert "s3cret" not in str(rejected.value)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite+aiosqlite:///shop.db",
        "postgresql+asyncpg://shop@localhost/shop",
        "postgresql+asyncpg://shop:p%40ss@[::1]:5433/shop",
    ],
)
def test_both_databases_are_allowed(url: str) -> None:
    config = read(SHOP_DATABASE_URL=url, SHOP_DATABASE_POOL_SIZE="3")
    assert (config.database_url, config.database_pool_size) == (url, 3)


def test_what_a_file_holds_is_the_variable_and_its_end_of_line_is_not(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"new:{'n' * 32},old:{'o' * 32}\n")
    config = read(SHOP_AUTH_KEYS_FILE=str(tmp_path / "keys"))
    assert config.auth_keys == (("new", "n" * 32), ("old", "o" * 32))
    with pytest.raises(ConfigError, match="both SHOP_CITY and SHOP_CITY_FILE are set"):
        read(SHOP_CITY="Hangzhou", SHOP_CITY_FILE=str(tmp_path / "keys"))
    (tmp_path / "keys").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read: it is not a text file"):
        read(SHOP_AUTH_KEYS_FILE=str(tmp_path / "keys"))


def test_no_printed_configuration_shows_a_secret() -> None:
    config = read(SHOP_AUTH_KEYS="k1:" + "s3cret" * 6, SHOP_DATABASE_URL="postgresql+asyncpg://u:s3cret@host/shop")
    assert "s3cret" not in repr(config)


def test_a_service_that_takes_tokens_needs_a_key_and_says_how_to_make_one() -> None:
    read(SHOP_AUTH_KEYS="k1:" + "s" * 32).require_auth_keys()
    with pytest.raises(ConfigError, match=r"SHOP_AUTH_KEYS is not set: .* make one with: python -m servicekit"):
        read().require_auth_keys()


def test_the_rate_limit_can_be_set_and_switched_off() -> None:
    assert read().rate_limit == DEFAULT_RATE_LIMIT
    assert read(SHOP_RATE_LIMIT="5/1").rate_limit == RateLimit(5, 1)
    assert read(SHOP_RATE_LIMIT="off").rate_limit is None


def test_an_admission_limit_is_read_and_can_be_switched_off() -> None:
    assert read().admission_limit == DEFAULT_ADMISSION_LIMIT
    assert read(SHOP_ADMISSION_LIMIT="5/100").admission_limit == AdmissionLimit(5, 100)
    assert read(SHOP_ADMISSION_LIMIT="off").admission_limit is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciling(ReconcilingConfig):
    PREFIX: ClassVar[str] = "SHOP_"

    database_url: str = field(default="sqlite+aiosqlite:///shop.db", repr=False)


def reconciling(**variables: str) -> Reconciling:
    return Reconciling(**read_environment(variables, Reconciling.PREFIX, RECONCILING_PARSERS))


def test_a_reconciler_runs_by_itself_and_can_be_turned_off() -> None:
    usual = reconciling()
    assert (usual.reconcile_interval_ms, usual.reconcile_after_ms, usual.reconcile_rows_max) == (30_000, 60_000, 1_000)
    other = reconciling(
        SHOP_RECONCILE_INTERVAL_MS="0",
        SHOP_RECONCILE_AFTER_MS="1",
        SHOP_RECONCILE_ROWS_MAX="2000",
        SHOP_MQ_URL="mq://q:1",
    )
    assert (other.reconcile_interval_ms, other.reconcile_after_ms, other.reconcile_rows_max) == (0, 1, 2_000)
    assert other.mq_url == "mq://q:1"


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("INTERVAL_MS", "-1", "allowed are 0 (off) and more"),
        ("AFTER_MS", "0", "at least 1 is allowed"),
        ("ROWS_MAX", "0", "allowed are 1 to 2000"),
        ("ROWS_MAX", "2001", "allowed are 1 to 2000"),
    ],
)
def test_limits_of_a_reconciler_that_make_no_sense_are_rejected(name: str, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as rejected:
        reconciling(**{f"SHOP_RECONCILE_{name}": text})
    assert str(rejected.value) == f"SHOP_RECONCILE_{name}={text}: {complaint}"


def test_trusted_proxies_are_addresses_and_networks() -> None:
    assert read().trusted_proxies == ("127.0.0.1/32", "::1/128")
    assert read(SHOP_TRUSTED_PROXIES="10.0.0.7, fd00::/8").trusted_proxies == ("10.0.0.7/32", "fd00::/8")
    assert read(SHOP_TRUSTED_PROXIES="none").trusted_proxies == ()
