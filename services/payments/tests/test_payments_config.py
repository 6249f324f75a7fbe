"""The configuration, and what is said about a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from payments.config import Config, from_environment
from servicekit.config import ConfigError

KEY, SECRET, OTHER_SECRET = "k" * 40, "s" * 32, "o" * 32
NEEDED = {
    "PAYMENTS_AUTH_KEYS": f"first:{KEY}",
    "PAYMENTS_GATEWAY_API_KEY": "the key of the gateway",
    "PAYMENTS_WEBHOOK_SECRETS": SECRET,
}


def test_an_environment_with_nothing_but_secrets_gives_the_defaults() -> None:
    config = from_environment({"PATH": "/bin", "ORDERS_LISTEN": "x"} | NEEDED)
    assert (config.listen_host, config.listen_port) == ("127.0.0.1", 8002)
    assert config.database_url == "sqlite+aiosqlite:///payments.db"
    assert config.gateway_url == "http://127.0.0.1:8003"
    assert config.orders_url == "http://127.0.0.1:8001"
    assert config.gateway_silence_ms == 5_000
    assert config.webhook_secrets == (SECRET,)


def test_every_key_is_read() -> None:
    config = from_environment(
        NEEDED
        | {
            "PAYMENTS_DATABASE_URL": "postgresql+asyncpg://payments:pw@db/payments",
            "PAYMENTS_MQ_URL": "mq://a:1;b:2",
            "PAYMENTS_LISTEN": "0.0.0.0:0",
            "PAYMENTS_GATEWAY_URL": "https://gateway.example/v9",
            "PAYMENTS_GATEWAY_SILENCE_MS": "250",
            "PAYMENTS_CHARGE_LATE_MAX_MS": "10000",
            "PAYMENTS_ORDERS_URL": "http://orders:8001",
            "PAYMENTS_WEBHOOK_SECRETS": f"{SECRET}, {OTHER_SECRET}",
            "PAYMENTS_RATE_LIMIT": "off",
            "PAYMENTS_LOG_LEVEL": "debug",
        }
    )
    assert (config.listen_host, config.listen_port, config.log_level) == ("0.0.0.0", 0, "DEBUG")
    assert config.database_url.endswith("@db/payments")
    assert config.mq_url == "mq://a:1;b:2"
    assert (config.gateway_url, config.gateway_api_key) == ("https://gateway.example/v9", "the key of the gateway")
    assert (config.gateway_silence_ms, config.charge_late_max_ms) == (250, 10_000)
    assert config.orders_url == "http://orders:8001"
    assert config.webhook_secrets == (SECRET, OTHER_SECRET)
    assert config.auth_keys == (("first", KEY),)
    assert config.rate_limit is None


def test_secrets_are_read_from_files(tmp_path: Path) -> None:
    environment = {}
    for name, text in NEEDED.items():
        path = tmp_path / name
        path.write_text(f"{text}\n")
        environment[f"{name}_FILE"] = str(path)
    assert from_environment(environment) == from_environment(NEEDED)


def test_no_secret_shows() -> None:
    config = from_environment(NEEDED | {"PAYMENTS_DATABASE_URL": "postgresql+asyncpg://payments:pass-word@db/payments"})
    for secret in (KEY, SECRET, "the key of the gateway", "pass-word"):
        assert secret not in repr(config)


@pytest.mark.parametrize("missing", NEEDED)
def test_a_secret_that_is_missing_is_asked_for_by_name(missing: str) -> None:
    with pytest.raises(ConfigError, match=missing):
        from_environment({name: text for name, text in NEEDED.items() if name != missing})


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("PAYMENTS_LISTNE", "x", "unknown configuration key PAYMENTS_LISTNE; did you mean PAYMENTS_LISTEN?"),
        ("PAYMENTS_QQQQQQQQQQQQQQQQ", "x", "known are PAYMENTS_DATABASE_URL"),
        ("PAYMENTS_LISTEN", "8002", "host:port"),
        ("PAYMENTS_DATABASE_URL", "sqlite:///x.db", "sqlite\\+aiosqlite:///"),
        ("PAYMENTS_MQ_URL", "127.0.0.1:9876", "mq://"),
        ("PAYMENTS_LOG_LEVEL", "LOUD", "allowed are DEBUG"),
        ("PAYMENTS_GATEWAY_URL", "sandbox:///g.db", "PAYMENTS_GATEWAY_URL='sandbox:///g.db': allowed is a URL such as"),
        ("PAYMENTS_GATEWAY_URL", "http://", "allowed is a URL"),
        ("PAYMENTS_GATEWAY_URL", "http://[", "allowed is a URL"),
        ("PAYMENTS_GATEWAY_API_KEY", "", "the key that the gateway gave"),
        ("PAYMENTS_GATEWAY_API_KEY", "a\nb", "printable ASCII"),
        ("PAYMENTS_GATEWAY_SILENCE_MS", "0", "at least 1"),
        ("PAYMENTS_CHARGE_LATE_MAX_MS", "9999", "at least 10000"),
        ("PAYMENTS_GATEWAY_SILENCE_MS", "soon", "not a whole number"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_rejected_by_name(name: str, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        from_environment(NEEDED | {name: text})


@pytest.mark.parametrize("text", ["", "short-secret", f"{SECRET},", f"{SECRET},short-secret", "x" * 31])
def test_a_webhook_secret_that_is_too_short_is_rejected_and_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError, match="PAYMENTS_WEBHOOK_SECRETS takes secrets of at least 32") as rejected:
        from_environment(NEEDED | {"PAYMENTS_WEBHOOK_SECRETS": text})
    assert "short-secret" not in str(rejected.value)
    assert SECRET not in str(rejected.value)


def test_config_is_one_frozen_value() -> None:
    assert from_environment(NEEDED) == Config(
        auth_keys=(("first", KEY),), gateway_api_key="the key of the gateway", webhook_secrets=(SECRET,)
    )
