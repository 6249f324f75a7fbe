"""Makes tokens and keys on the command line.

python -m servicekit.token new-key                                                 a key for *_AUTH_KEYS
python -m servicekit.token --keys-file F --subject buyer-1 --role buyer            a token, for curl
python -m servicekit.token --keys-variable ORDERS_AUTH_KEYS --subject op --role operator --lifetime-s 600
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

from osenv import Clock, RealClock, Rng, SystemRng
from servicekit.auth import LIFETIME_S, ROLES, Keys, Tokens
from servicekit.config import COMMON_PARSERS, ConfigError, read_environment

EXIT_USAGE = 2
SECRET_BYTES = 32  # as many as HMAC-SHA256 makes use of

_PARSE_KEYS = COMMON_PARSERS["AUTH_KEYS"]


def main(
    arguments: Sequence[str] | None = None,
    environment: Mapping[str, str] = os.environ,
    clock: Clock | None = None,
    rng: Rng | None = None,
) -> int:
    """Print one line; the exit code is 2 when the arguments or the keys cannot be used."""
    parser = _parser()
    wanted = parser.parse_args(arguments)
    if wanted.command == "new-key":
        print(f"{wanted.key_name}:{(rng or SystemRng()).randbytes(SECRET_BYTES).hex()}")
        return 0
    if wanted.subject is None or wanted.role is None:
        parser.error("a token needs --subject and --role")
    try:
        tokens = Tokens(_keys(wanted, environment), clock or RealClock())
        print(tokens.issue(wanted.subject, ROLES[wanted.role], wanted.lifetime_s))
    except ValueError as error:  # ConfigError is one
        print(f"servicekit.token: {error}", file=sys.stderr)
        return EXIT_USAGE
    return 0


def _keys(wanted: argparse.Namespace, environment: Mapping[str, str]) -> Keys:
    if (wanted.keys_file is None) == (wanted.keys_variable is None):
        raise ConfigError("name the keys: either --keys-file or --keys-variable")
    if wanted.keys_file is not None:
        found = read_environment({"KEYS_FILE": wanted.keys_file}, "", {"KEYS": _PARSE_KEYS})
    else:
        name = wanted.keys_variable
        if name not in environment:
            raise ConfigError(f"the variable {name} is not set")
        found = _PARSE_KEYS(name, environment[name])
    keys: Keys = found["auth_keys"]
    return keys


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m servicekit.token", description="Makes tokens and keys.")
    parser.add_argument("command", nargs="?", choices=("issue", "new-key"), default="issue")
    parser.add_argument("--keys-file", help="a file with what *_AUTH_KEYS of the services holds")
    parser.add_argument("--keys-variable", help="the variable that holds it, such as ORDERS_AUTH_KEYS")
    parser.add_argument("--subject", help="the token's subject, such as buyer-1")
    parser.add_argument("--role", choices=sorted(ROLES))
    parser.add_argument("--lifetime-s", type=int, default=LIFETIME_S, help=f"seconds (default: {LIFETIME_S})")
    parser.add_argument("--key-name", default="k1", help="of new-key: the name of the key (default: k1)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
