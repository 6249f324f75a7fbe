"""The JSON that requests and answers of all services share. Numbers are strict: money is never read from text."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
PAGE_DEFAULT = 50
PAGE_MAX = 200

Identifier = Annotated[str, Field(pattern=ID_PATTERN)]
Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$", description="ISO 4217 code", examples=["CNY"])]
Limit = Annotated[int, Field(ge=1, le=PAGE_MAX)]
Cursor = Annotated[str, Field(max_length=300, description="next_cursor of the page before")]


class RequestModel(BaseModel):
    """A request: members that nobody knows are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class AnswerModel(BaseModel):
    """An answer."""

    model_config = ConfigDict(frozen=True)


class Liveness(AnswerModel):
    status: Literal["live"] = "live"


class Readiness(AnswerModel):
    """Whether everything that the service needs works; `checks` has each part's answer: "ok", or what is wrong."""

    status: Literal["ready", "not ready"]
    checks: dict[str, str]
