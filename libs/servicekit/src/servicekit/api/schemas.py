"""The JSON that requests and answers of all services share. Numbers are strict: money is never read from text."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from servicekit.identifiers import ID_PATTERN as ID_PATTERN  # noqa: PLC0414 - for the paths of routes

PAGE_DEFAULT = 50
PAGE_MAX = 200
TIME_MAX_MS = 253_402_300_799_999  # the end of the year 9999

Identifier = Annotated[str, Field(pattern=ID_PATTERN)]
Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$", description="ISO 4217 code", examples=["CNY"])]
Limit = Annotated[int, Field(ge=1, le=PAGE_MAX, description="how many at most")]
Cursor = Annotated[str, Field(max_length=300, description="next_cursor of the page before")]
Milliseconds = Annotated[int, Field(ge=0, le=TIME_MAX_MS, description="milliseconds since 1970-01-01 UTC")]

# Of a route's `responses`: where to find what was made.
LOCATION_HEADER: dict[str, Any] = {"Location": {"description": "where to read it", "schema": {"type": "string"}}}


class RequestModel(BaseModel):
    """A request: members that nobody knows are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class AnswerModel(BaseModel):
    """An answer."""

    model_config = ConfigDict(frozen=True)


class Liveness(AnswerModel):
    """The process answers."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "live"}]})

    status: Literal["live"] = "live"


class Readiness(AnswerModel):
    """Whether everything that the service needs works; `checks` has each part's answer: "ok", "ok, but ...",
    or what is wrong."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"status": "ready", "checks": {"database": "ok", "producer": "ok", "consumers": "ok"}},
                {
                    "status": "not ready",
                    "checks": {"database": "no answer in 2 s", "producer": "ok", "consumers": "ok"},
                },
            ]
        }
    )

    status: Literal["ready", "not ready"]
    checks: dict[str, str]
