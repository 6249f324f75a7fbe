"""The configuration, and what is said about a wrong one."""

from __future__ import annotations

import pytest

from orders.config import Config, from_environment
from servicekit.config import ConfigError

DEMO_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 10s 1h 2h"


def test_an_empty_environment_gives_the_defaults() -> None:
    assert from_environment({"PATH": "/bin"}) == Config()
    assert Config().delay_levels.payment_window_ms == Config().payment_window_ms == 1_800_000


def test_every_key_is_read() -> None:
    config = from_environment(
        {
            "ORDERS_DATABASE_URL": "sqlite+aiosqlite:////tmp/o.db",
            "ORDERS_MQ_URL": "mq://a:1;b:2",
            "ORDERS_LISTEN": "0.0.0.0:0",
            "ORDERS_PAYMENT_WINDOW_MS": "10000",
            "ORDERS_DELAY_LEVELS": DEMO_LEVELS,
            "ORDERS_LOG_LEVEL": "debug",
        }
    )
    assert (config.listen_host, config.listen_port, config.log_level) == ("0.0.0.0", 0, "DEBUG")
    assert config.database_url.endswith("/tmp/o.db")
    assert config.mq_url == "mq://a:1;b:2"
    assert config.delay_levels.payment_window_ms == config.payment_window_ms == 10_000


def test_level_16_follows_the_payment_window_where_no_levels_are_named() -> None:
    assert from_environment({"ORDERS_PAYMENT_WINDOW_MS": "10000"}).delay_levels.delays_ms[15] == 10_000


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("ORDERS_LISTNE", "x", "unknown configuration key ORDERS_LISTNE; did you mean ORDERS_LISTEN?"),
        ("ORDERS_ZZZZZ", "x", "known are ORDERS_DATABASE_URL"),
        ("ORDERS_LISTEN", "8001", "host:port"),
        ("ORDERS_LISTEN", "localhost:http", "host:port"),
        ("ORDERS_LISTEN", "localhost:70000", "port 0 to 65535"),
        ("ORDERS_DATABASE_URL", "sqlite:///x.db", "sqlite\\+aiosqlite:///"),
        ("ORDERS_DATABASE_URL", "sqlite+aiosqlite:///:memory:", "path of a file"),
        ("ORDERS_DATABASE_URL", "sqlite+aiosqlite:///", "path of a file"),
        ("ORDERS_MQ_URL", "127.0.0.1:9876", "mq://"),
        ("ORDERS_PAYMENT_WINDOW_MS", "half an hour", "whole number"),
        ("ORDERS_PAYMENT_WINDOW_MS", "0", "at least 1"),
        ("ORDERS_DELAY_LEVELS", "1s 2s", "2 levels"),
        ("ORDERS_DELAY_LEVELS", DEMO_LEVELS, "both have to be equal"),
        ("ORDERS_LOG_LEVEL", "LOUD", "allowed are DEBUG"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused_by_name(name: str, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        from_environment({name: text})
