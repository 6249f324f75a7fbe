"""Options as Spark hands them over, text by text, and what the text has to be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from mqproto.address import parse_address_list
from mqproto.names import IllegalNameError, check_group
from pyspark_mq.errors import OptionError

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
SCHEMES = ("mq", "mq+http", "mq+dns")


class OptionValues:
    """Case-insensitive by name. Every method raises OptionError, with what is allowed."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str], purpose: str = "reading") -> None:
        names = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() not in names:
                allowed = ", ".join(sorted(names.values(), key=str.lower))
                raise OptionError(f"the data source mq has no option {name!r} for {purpose}; allowed are {allowed}")
            self._values[names[name.lower()]] = str(value).strip()

    def has(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str = "") -> str:
        """As it is; empty is an error when it was set."""
        if name in self._values and not self._values[name]:
            raise OptionError(f"{name} is empty; set it, or leave it out")
        return self._values.get(name, default)

    def required(self, name: str) -> str:
        if name not in self._values:
            raise OptionError(f"{name} is not set; it is required")
        return self.text(name)

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raise for the first of these that is set."""
        for name in names:
            if name in self._values:
                raise OptionError(f"{name} is set, but {why}")

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self.text(name, str(default)).lower()
        if value not in ("true", "false"):
            raise OptionError(f"{name} is {self._values[name]!r}; allowed are true and false")
        return value == "true"

    def count(self, name: str, default: int = 0, *, least: int = 1, most: int | None = None) -> int:
        """A whole number within the bounds; `default` when it is not set."""
        if name not in self._values:
            return default
        value = self.text(name)
        if not re.fullmatch("[0-9]{1,18}", value) or not least <= int(value) <= (int(value) if most is None else most):
            allowed = f"a whole number from {least} {'up' if most is None else f'to {most}'}"
            raise OptionError(f"{name} is {value!r}; it has to be {allowed}")
        return int(value)

    def duration_ms(self, name: str, default: int) -> int:
        """Such as 500ms, 30s, 15m, 2h; a number alone counts milliseconds."""
        if name not in self._values:
            return default
        match = re.fullmatch(r"([0-9]{1,12})\s*([a-z]*)", self.text(name).lower())
        if match is None or (match[2] or "ms") not in _UNITS_MS or not int(match[1]):
            units = ", ".join(_UNITS_MS)
            raise OptionError(f"{name} is {self._values[name]!r}; write a number and a unit ({units}), such as 15m")
        return int(match[1]) * _UNITS_MS[match[2] or "ms"]

    def url(self, name: str) -> str:
        """For mqclient: of a list of name servers, or a URL as it is."""
        value = self.required(name)
        scheme, separator, _ = value.partition("://")
        if separator:
            if scheme not in SCHEMES:
                allowed = ", ".join(f"{one}://" for one in SCHEMES)
                raise OptionError(f"{name} is {value!r}; a URL begins with one of {allowed}")
            return value
        try:
            return "mq://" + ";".join(str(address) for address in parse_address_list(value))
        except ValueError as error:
            raise OptionError(f"{name}: {error}") from None

    def group(self, name: str) -> str:
        """A consumer group's name; empty when it is not set."""
        value = self.text(name)
        try:
            if value:
                check_group(value)
        except IllegalNameError as error:
            raise OptionError(f"{name}: {error}") from None
        return value
