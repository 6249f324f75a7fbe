"""The gateway's HTTP API over its use cases. Amounts are strict: money is never read from text or from floats."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Annotated, Self, cast

from fastapi import APIRouter, Depends, FastAPI, Path, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import Field, StrictInt

from osenv import Clock
from sandbox_gateway import domain
from sandbox_gateway.domain import (
    LATE_MAX_MS,
    Charge,
    ChargeStatus,
    ChargeTerms,
    Failures,
    Refund,
    RefundStatus,
    RefundTerms,
)
from sandbox_gateway.gateway import Behaviour, Gateway
from servicekit.errors import ServiceError
from servicekit.http import application
from servicekit.http import problem as common
from servicekit.http.parameters import AnswerModel, Currency, Identifier, RequestModel
from servicekit.http.problem import UNAUTHENTICATED, ProblemError, ProblemType, documented
from servicekit.identifiers import ID_PATTERN
from servicekit.monitoring import Health

AMOUNT_MAX_MINOR = 2**63 - 1  # what the database holds

REFUND_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"

RefundIdentifier = Annotated[str, Field(pattern=REFUND_ID_PATTERN, examples=["refund-17"])]
Amount = Annotated[StrictInt, Field(ge=1, le=AMOUNT_MAX_MINOR, description="in minor units", examples=[15800])]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, description="of all charges", examples=[0.1])]


class NewCharge(RequestModel):
    """Money to take."""

    charge_id: Annotated[Identifier, Field(examples=["payment-17"])]
    order_id: Annotated[Identifier, Field(examples=["order-17"])]
    amount_minor: Amount
    currency: Currency
    method: Annotated[str, Field(pattern=r"^[a-z][a-z_]{0,19}$", examples=["card"])]

    def to_terms(self) -> ChargeTerms:
        return ChargeTerms(self.charge_id, self.order_id, self.amount_minor, self.currency, self.method)


class ChargeAnswer(AnswerModel):
    """A charge; times are milliseconds since 1970-01-01 UTC."""

    charge_id: str
    order_id: str
    amount_minor: int
    currency: str
    method: str
    status: ChargeStatus
    created_at_ms: int
    decided_at_ms: int | None
    decline_reason: str | None

    @classmethod
    def of(cls, value: object) -> Self:
        charge = cast(Charge, value)
        return cls.model_validate(asdict(charge) | asdict(charge.terms))


class NewRefund(RequestModel):
    """Money to give back."""

    refund_id: RefundIdentifier
    charge_id: Annotated[Identifier, Field(examples=["payment-17"])]
    amount_minor: Amount
    currency: Currency

    def to_terms(self) -> RefundTerms:
        return RefundTerms(self.refund_id, self.charge_id, self.amount_minor, self.currency)


class RefundAnswer(AnswerModel):
    """A refund; times are milliseconds since 1970-01-01 UTC."""

    refund_id: str
    charge_id: str
    amount_minor: int
    currency: str
    status: RefundStatus
    created_at_ms: int
    refunded_at_ms: int | None

    @classmethod
    def of(cls, value: object) -> Self:
        refund = cast(Refund, value)
        return cls.model_validate(asdict(refund) | asdict(refund.terms))


class BookAnswer(AnswerModel):
    """What was taken and given back since the beginning."""

    captured_minor: int
    refunded_minor: int
    captures: int
    refunds: int


class FailuresDocument(RequestModel):
    """What goes wrong: the question and the answer of /v1/failures. What is left out is 0."""

    declined: Share = 0.0
    late: Share = 0.0
    late_ms: Annotated[StrictInt, Field(ge=0, le=LATE_MAX_MS, examples=[3000])] = 0
    duplicated: Share = 0.0
    reordered: Share = 0.0
    never: Share = 0.0

    def to_failures(self) -> Failures:
        return Failures(**self.model_dump())

    @classmethod
    def of(cls, failures: Failures) -> Self:
        return cls.model_validate(failures, from_attributes=True)


UNKNOWN_CHARGE = ProblemType("unknown-charge", 404, "There is no such charge", ("charge_id",))
UNKNOWN_REFUND = ProblemType("unknown-refund", 404, "There is no such refund", ("refund_id",))
OTHER_TERMS = ProblemType("other-terms", 409, "The id was used with other terms")
NOT_REFUNDABLE = ProblemType("not-refundable", 422, "The charge has not so much to give back")
WRITTEN_MEANWHILE = ProblemType("written-meanwhile", 503, "Another request writes the same", retry_after_s=1)

PROBLEM_OF_ERROR: Mapping[type[ServiceError], ProblemType] = MappingProxyType(
    {
        domain.UnknownChargeError: UNKNOWN_CHARGE,
        domain.UnknownRefundError: UNKNOWN_REFUND,
        domain.OtherTermsError: OTHER_TERMS,
        domain.NotRefundableError: NOT_REFUNDABLE,
        domain.WrittenMeanwhileError: WRITTEN_MEANWHILE,
    }
)


@dataclass(frozen=True, slots=True)
class UseCases:
    """Everything that the routes can do."""

    gateway: Gateway
    behaviour: Behaviour
    api_key: str


_bearer = HTTPBearer(scheme_name="api_key", description="The API key.", auto_error=False)


def _use_cases(request: Request) -> UseCases:
    return cast(UseCases, request.app.state.use_cases)


UseCasesOf = Annotated[UseCases, Depends(_use_cases)]


async def check_api_key(
    use_cases: UseCasesOf, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> None:
    """Raises ProblemError for a request without the key."""
    if credentials is None or not hmac.compare_digest(credentials.credentials.encode(), use_cases.api_key.encode()):
        raise ProblemError(UNAUTHENTICATED, "send Authorization: Bearer <API key>")


charges_router = APIRouter(prefix="/v1/charges", tags=["charges"], dependencies=[Depends(check_api_key)])


@charges_router.post(
    "",
    status_code=202,
    summary="Take money, once for each charge_id",
    responses=documented(
        common.MALFORMED_REQUEST,
        OTHER_TERMS,
        common.BODY_TOO_LARGE,
        common.INVALID_REQUEST,
        WRITTEN_MEANWHILE,
        common.STORAGE_UNAVAILABLE,
    ),
)
async def charge(new_charge: NewCharge, use_cases: UseCasesOf) -> ChargeAnswer:
    """The decision is told by a webhook; a repeated request, and a GET of the charge, show it too."""
    return ChargeAnswer.of(await use_cases.gateway.charge(new_charge.to_terms()))


@charges_router.get(
    "/{charge_id}",
    summary="What became of a charge",
    responses=documented(UNKNOWN_CHARGE, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE),
)
async def get_charge(charge_id: Annotated[str, Path(pattern=ID_PATTERN)], use_cases: UseCasesOf) -> ChargeAnswer:
    return ChargeAnswer.of(await use_cases.gateway.find_charge(charge_id))


refunds_router = APIRouter(prefix="/v1/refunds", tags=["refunds"], dependencies=[Depends(check_api_key)])


@refunds_router.post(
    "",
    status_code=202,
    summary="Give money of a captured charge back, once for each refund_id",
    responses=documented(
        common.MALFORMED_REQUEST,
        OTHER_TERMS,
        common.BODY_TOO_LARGE,
        common.INVALID_REQUEST,
        NOT_REFUNDABLE,
        WRITTEN_MEANWHILE,
        common.STORAGE_UNAVAILABLE,
    ),
)
async def refund(new_refund: NewRefund, use_cases: UseCasesOf) -> RefundAnswer:
    """Several refunds of a charge are taken until its whole amount is given back."""
    return RefundAnswer.of(await use_cases.gateway.refund(new_refund.to_terms()))


@refunds_router.get(
    "/{refund_id}",
    summary="What became of a refund",
    responses=documented(UNKNOWN_REFUND, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE),
)
async def get_refund(refund_id: Annotated[str, Path(pattern=REFUND_ID_PATTERN)], use_cases: UseCasesOf) -> RefundAnswer:
    return RefundAnswer.of(await use_cases.gateway.find_refund(refund_id))


operations_router = APIRouter(prefix="/v1", tags=["operations"], dependencies=[Depends(check_api_key)])


@operations_router.get(
    "/book",
    summary="Everything that was taken and given back",
    responses=documented(common.STORAGE_UNAVAILABLE),
)
async def book(use_cases: UseCasesOf) -> BookAnswer:
    return BookAnswer.of(await use_cases.gateway.book())


@operations_router.get("/failures", summary="What goes wrong")
async def get_failures(use_cases: UseCasesOf) -> FailuresDocument:
    return FailuresDocument.of(use_cases.behaviour.failures)


@operations_router.put(
    "/failures",
    summary="Set what goes wrong with what is decided from now on",
    responses=documented(common.MALFORMED_REQUEST, common.BODY_TOO_LARGE, common.INVALID_REQUEST),
)
async def set_failures(failures: FailuresDocument, use_cases: UseCasesOf) -> FailuresDocument:
    """Until the next start, which goes back to the configuration."""
    use_cases.behaviour.failures = failures.to_failures()
    return failures


# Health checks of this gateway's clients come every few seconds, and read the book.
BOOK_URL = "/v1/book"


def build_api(use_cases: UseCases, health: Health, clock: Clock) -> FastAPI:
    """The routes of the gateway, with all that servicekit gives a service's API."""
    app = application.build_api(
        title="Hourglass sandbox gateway",
        summary="Takes money that is not real, gives it back, and tells by webhooks",
        routers=(charges_router, refunds_router, operations_router),
        health=health,
        problem_of_error=PROBLEM_OF_ERROR,
        tokens=None,  # an API key instead: one program asks, and no people
        rate_limit=None,
        clock=clock,
        untraced_urls=(*application.UNTRACED_URLS, BOOK_URL),
    )
    app.state.use_cases = use_cases
    return app
