"""Checks of what an application sets, with one wording for all: what was wrong, and what is allowed."""

from __future__ import annotations

from mqclient.errors import IllegalArgumentError, IllegalGroupError
from mqproto.names import IllegalNameError, check_group


def legal_group(group: str) -> str:
    """The name of a producer's or a consumer's group. Raises IllegalGroupError."""
    try:
        check_group(group)
    except IllegalNameError as error:
        raise IllegalGroupError(str(error)) from error
    return group


def require_integer(config: object, name: str, least: int, most: int | None = None) -> None:
    """Raise IllegalArgumentError unless the attribute `name` is an integer from `least` to `most`."""
    value = getattr(config, name)
    if type(value) is not int or value < least or (most is not None and value > most):
        allowed = f"{least:,} or more" if most is None else f"{least:,} to {most:,}"
        raise IllegalArgumentError(f"{name} has to be an integer, {allowed}, not {value!r}")


def require_number(config: object, name: str, least: float | None = None) -> None:
    """Raise IllegalArgumentError unless the attribute `name` is a number of at least `least`, or above 0."""
    value = getattr(config, name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not (value > 0 if least is None else value >= least):
        allowed = "above 0" if least is None else f"of at least {least}"
        raise IllegalArgumentError(f"{name} has to be a number {allowed}, not {value!r}")
