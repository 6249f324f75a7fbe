"""Payments as tests want it: composed as in production, on files of its own, with a gateway, a queue and a clock that
the test holds.
"""

from payments.testing.running_payments import BUYER, TOTAL_MINOR, RunningPayments, order_event, running_payments
from payments.testing.scripted_gateway import ScriptedGateway, Step

__all__ = [
    "BUYER",
    "TOTAL_MINOR",
    "RunningPayments",
    "ScriptedGateway",
    "Step",
    "order_event",
    "running_payments",
]
