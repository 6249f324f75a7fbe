"""The secrets of one shop, each in a file that only its owner can read: made once, and kept with the cluster.

Invariant: a secret is in its file and nowhere else; processes are told the path, so that no environment shows one.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from servicekit.auth import Keys, parse_keys

KEY_NAME = "local"
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class ShopSecrets:
    """Paths. `auth_keys` sign the tokens of callers, `gateway_api_key` opens the gateway for payments, and the gateway
    signs its webhooks with `webhook_secret`.
    """

    folder: Path

    @property
    def auth_keys(self) -> Path:
        return self.folder / "auth-keys"

    @property
    def gateway_api_key(self) -> Path:
        return self.folder / "gateway-api-key"

    @property
    def webhook_secret(self) -> Path:
        return self.folder / "webhook-secret"

    def make(self) -> None:
        """Make those that are not there yet. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path, prefix in ((self.auth_keys, f"{KEY_NAME}:"), (self.gateway_api_key, ""), (self.webhook_secret, "")):
            if not path.exists():
                write_secret(path, prefix + secrets.token_hex(SECRET_BYTES))

    def keys(self) -> Keys:
        """What tokens are signed with. Raises OSError."""
        return read_keys(self.auth_keys)


def read_keys(path: Path) -> Keys:
    """What is in a file of *_AUTH_KEYS. Raises OSError, and ValueError for what are no keys."""
    return parse_keys(path.read_text(encoding="utf-8").strip())


def write_secret(path: Path, text: str) -> None:
    """Replace the file's content; nobody else can read it at any moment. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text + "\n")
