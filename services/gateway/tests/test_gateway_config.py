"""The configuration, and what is said about a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox_gateway.config import Config, from_environment
from sandbox_gateway.domain import Failures
from servicekit.config import ConfigError

KEY, SECRET, OLD_SECRET = "k" * 32, "s" * 32, "o" * 32
REQUIRED = {"GATEWAY_API_KEY": KEY, "GATEWAY_WEBHOOK_SECRET": SECRET}


def test_two_secrets_are_all_that_has_to_be_set() -> None:
    config = from_environment({"PATH": "/bin", "PAYMENTS_LISTEN": "x", **REQUIRED})
    assert config == Config(api_key=KEY, webhook_secrets=(SECRET,))
    assert (config.listen_host, config.listen_port) == ("127.0.0.1", 8003)
    assert config.database_url == "sqlite+aiosqlite:///gateway.db"
    assert config.webhook_url == "http://127.0.0.1:8002/webhooks/gateway"
    assert config.behaviour().delay_ms == 50
    assert config.behaviour().failures == Failures()


def test_every_key_is_read(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    config = from_environment(
        {
            "GATEWAY_DATABASE_URL": "postgresql+asyncpg://u:p@h:1/gateway",
            "GATEWAY_DATABASE_POOL_SIZE": "3",
            "GATEWAY_LISTEN": "0.0.0.0:0",
            "GATEWAY_LOG_LEVEL": "debug",
            "GATEWAY_API_KEY_FILE": str(tmp_path / "key"),
            "GATEWAY_WEBHOOK_URL": "https://payments.example/webhooks/gateway",
            "GATEWAY_WEBHOOK_SECRET": f"{SECRET}, {OLD_SECRET}",  # as payments reads its own
            "GATEWAY_DELAY_MS": "0",
            "GATEWAY_DECLINES_ABOVE_MINOR": "1000000",
            "GATEWAY_FAILURES": "declined=0.1,late=0.2:3000",
            "GATEWAY_SEED": "-7",
        }
    )
    assert (config.listen_host, config.listen_port, config.log_level) == ("0.0.0.0", 0, "DEBUG")
    assert (config.api_key, config.webhook_secrets) == (KEY, (SECRET, OLD_SECRET))
    behaviour = config.behaviour()
    assert (behaviour.delay_ms, behaviour.declines_above_minor, behaviour.seed) == (0, 1_000_000, -7)
    assert behaviour.failures == Failures(declined=0.1, late=0.2, late_ms=3000)


def test_no_secret_is_shown() -> None:
    shown = repr(from_environment(REQUIRED))
    assert KEY not in shown
    assert SECRET not in shown


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("GATEWAY_LISTNE", "x", "unknown configuration key GATEWAY_LISTNE; did you mean GATEWAY_LISTEN?"),
        ("GATEWAY_MQ_URL", "mq://a:1", "unknown configuration key GATEWAY_MQ_URL"),
        ("GATEWAY_DATABASE_URL", "sqlite:///x.db", "sqlite\\+aiosqlite:///"),
        ("GATEWAY_API_KEY", "k" * 31, "GATEWAY_API_KEY has 31 characters: needed are at least 32"),
        ("GATEWAY_WEBHOOK_SECRET", "", "GATEWAY_WEBHOOK_SECRET is missing or short"),
        ("GATEWAY_WEBHOOK_SECRET", f"{SECRET},short", "GATEWAY_WEBHOOK_SECRET is missing or short"),
        ("GATEWAY_WEBHOOK_URL", "payments:8002", "http:// or https://"),
        ("GATEWAY_WEBHOOK_URL", "http://[half", "http:// or https://"),
        ("GATEWAY_WEBHOOK_URL", "http://a:99999/", "http:// or https://"),
        ("GATEWAY_DELAY_MS", "-1", "allowed are 0 to"),
        ("GATEWAY_DELAY_MS", "soon", "is not a whole number"),
        ("GATEWAY_DECLINES_ABOVE_MINOR", "-1", "allowed is 0 and more"),
        ("GATEWAY_FAILURES", "declined=2", "GATEWAY_FAILURES='declined=2': declined=2.0: allowed is a share from 0 to"),
        ("GATEWAY_SEED", "x", "is not a whole number"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_rejected_by_name(name: str, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        from_environment({**REQUIRED, name: text})


@pytest.mark.parametrize("missing", sorted(REQUIRED))
def test_a_secret_that_is_missing_is_named(missing: str) -> None:
    with pytest.raises(ConfigError, match=missing):
        from_environment({name: text for name, text in REQUIRED.items() if name != missing})
