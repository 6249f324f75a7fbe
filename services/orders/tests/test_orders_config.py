"""The configuration, and what is said about a wrong one."""

from __future__ import annotations

import pytest

from orders.config import Config, from_environment
from servicekit.auth import parse_keys
from servicekit.config import ConfigError

KEYS = "first:a secret with more than 32 characters,second:another one with more than 32 characters"
REQUIRED = {"ORDERS_AUTH_KEYS": KEYS}
DEMO_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 10s 1h 2h"


def test_keys_alone_give_the_defaults() -> None:
    config = from_environment({"PATH": "/bin"} | REQUIRED)
    assert config == Config(auth_keys=parse_keys(KEYS))
    assert config.delay_levels.payment_window_ms == config.payment_window_ms == 1_800_000
    assert config.completion_after_ms == 7 * 86_400_000
    assert (config.payments_url, config.trace_url, config.sandbox_sign_in) == ("http://127.0.0.1:8002", None, False)
    assert (config.sample_catalogue, config.token_command) == (False, None)


def test_without_keys_nothing_starts_and_it_is_said_how_to_make_one() -> None:
    with pytest.raises(ConfigError, match=r"ORDERS_AUTH_KEYS is not set.*make one with"):
        from_environment({})


def test_every_key_is_read() -> None:
    config = from_environment(
        {
            "ORDERS_DATABASE_URL": "sqlite+aiosqlite:////tmp/o.db",
            "ORDERS_MQ_URL": "mq://a:1;b:2",
            "ORDERS_LISTEN": "0.0.0.0:0",
            "ORDERS_PAYMENT_WINDOW_MS": "10000",
            "ORDERS_DELAY_LEVELS": DEMO_LEVELS,
            "ORDERS_LOG_LEVEL": "debug",
            "ORDERS_COMPLETION_AFTER_MS": "20000",
            "ORDERS_HOLD_MS": "13000",
            "ORDERS_HOLD_PAST_EXPIRY_MS": "14000",
            "ORDERS_PAYMENTS_URL": "https://payments.example",
            "ORDERS_TRACE_URL": "http://jaeger:16686/trace/{trace_id}",
            "ORDERS_SANDBOX_SIGN_IN": "true",
            "ORDERS_SAMPLE_CATALOGUE": "true",
            "ORDERS_TOKEN_COMMAND": "print a token",
            "ORDERS_RATE_LIMIT": "off",
            "ORDERS_DATABASE_POOL_SIZE": "3",
        }
        | REQUIRED
    )
    assert (config.hold_ms, config.hold_past_expiry_ms) == (13_000, 14_000)
    assert (config.completion_after_ms, config.payments_url) == (20_000, "https://payments.example")
    assert (config.trace_url, config.sandbox_sign_in) == ("http://jaeger:16686/trace/{trace_id}", True)
    assert (config.sample_catalogue, config.token_command) == (True, "print a token")
    assert (config.rate_limit, config.database_pool_size) == (None, 3)
    assert (config.listen_host, config.listen_port, config.log_level) == ("0.0.0.0", 0, "DEBUG")
    assert config.database_url.endswith("/tmp/o.db")
    assert config.mq_url == "mq://a:1;b:2"
    assert config.delay_levels.payment_window_ms == config.payment_window_ms == 10_000


def test_an_empty_token_command_is_none() -> None:
    assert from_environment({"ORDERS_TOKEN_COMMAND": ""} | REQUIRED).token_command is None


def test_level_16_follows_the_payment_window_where_no_levels_are_named() -> None:
    assert from_environment({"ORDERS_PAYMENT_WINDOW_MS": "10000"} | REQUIRED).delay_levels.delays_ms[15] == 10_000


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
        ("ORDERS_COMPLETION_AFTER_MS", "0", "at least 1"),
        ("ORDERS_COMPLETION_AFTER_MS", "a week", "whole number"),
        ("ORDERS_HOLD_MS", "12999", "=12999: at least 13000 is allowed, for which payments may take to capture"),
        ("ORDERS_HOLD_PAST_EXPIRY_MS", "12999", "=12999: at least 13000 is allowed, for which payments"),
        ("ORDERS_PAYMENTS_URL", "127.0.0.1:8002", "such as http://"),
        ("ORDERS_PAYMENTS_URL", "http://[::1", "such as http://"),
        ("ORDERS_TRACE_URL", "http://jaeger:16686/trace/", "{trace_id}"),
        ("ORDERS_TRACE_URL", "jaeger/{trace_id}", "such as http://"),
        ("ORDERS_SANDBOX_SIGN_IN", "yes", "ORDERS_SANDBOX_SIGN_IN='yes': allowed are true and false"),
        ("ORDERS_SAMPLE_CATALOGUE", "1", "ORDERS_SAMPLE_CATALOGUE='1': allowed are true and false"),
        ("ORDERS_TOKEN_COMMAND", "x" * 401, "ORDERS_TOKEN_COMMAND has 401 characters: 1 to 400 are allowed"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_rejected_by_name(name: str, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        from_environment(REQUIRED | {name: text})


def test_no_repr_tells_a_secret() -> None:
    settings = {
        "ORDERS_AUTH_KEYS": "k1:s3cret s3cret s3cret s3cret s3cret",
        "ORDERS_DATABASE_URL": "postgresql+asyncpg://shop:s3cret@127.0.0.1/orders",
    }
    assert "s3cret" not in repr(from_environment(settings))
