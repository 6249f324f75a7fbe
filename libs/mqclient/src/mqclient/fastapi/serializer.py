"""How the bodies of messages become values and back: JSON by Pydantic, unless an MQ is given something else."""

from __future__ import annotations

from typing import Any, Protocol

from pydantic import TypeAdapter


class Serializer(Protocol):
    """Both directions; what `encode` makes, `decode` reads."""

    def encode(self, body: object) -> bytes:
        """The body as it travels."""

    def decode(self, body: bytes, type_: Any) -> Any:
        """A value of `type_`, which is what a handler's parameter is annotated with. Raises ValueError for others."""


class JsonSerializer:
    """JSON as Pydantic writes and validates it. `decode` raises pydantic.ValidationError, a ValueError."""

    def encode(self, body: object) -> bytes:
        return TypeAdapter(type(body)).dump_json(body)

    def decode(self, body: bytes, type_: Any) -> Any:
        return TypeAdapter(type_).validate_json(body)
