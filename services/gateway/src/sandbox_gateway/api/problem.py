"""The kinds of problems that the gateway adds to those of servicekit.api.problem."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sandbox_gateway.domain import errors
from servicekit.api.problem import ProblemType
from servicekit.errors import ServiceError

UNKNOWN_CHARGE = ProblemType("unknown-charge", 404, "There is no such charge", ("charge_id",))
UNKNOWN_REFUND = ProblemType("unknown-refund", 404, "There is no such refund", ("refund_id",))
OTHER_TERMS = ProblemType("other-terms", 409, "The id was used with other terms")
NOT_REFUNDABLE = ProblemType("not-refundable", 422, "The charge has not so much to give back")
WRITTEN_MEANWHILE = ProblemType("written-meanwhile", 503, "Another request writes the same", retry_after_s=1)

PROBLEM_OF_ERROR: Mapping[type[ServiceError], ProblemType] = MappingProxyType(
    {
        errors.UnknownChargeError: UNKNOWN_CHARGE,
        errors.UnknownRefundError: UNKNOWN_REFUND,
        errors.OtherTermsError: OTHER_TERMS,
        errors.NotRefundableError: NOT_REFUNDABLE,
        errors.WrittenMeanwhileError: WRITTEN_MEANWHILE,
    }
)
