"""Payments as tests want it: composed as in production, on a database of its own, with a gateway, a queue and a clock
that the test holds.

    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        payment = (await payments.pay("key")).payment
"""

from payments.testing.running_payments import (
    AUTH_KEYS,
    BUYER,
    OPERATOR,
    TOTAL_MINOR,
    WEBHOOK_SECRET,
    RunningPayments,
    order_event,
    running_payments,
)
from payments.testing.scripted_gateway import NO_MONEY, ScriptedGateway, Step
from payments.testing.scripted_orders import ScriptedOrders

__all__ = [
    "AUTH_KEYS",
    "BUYER",
    "NO_MONEY",
    "OPERATOR",
    "TOTAL_MINOR",
    "WEBHOOK_SECRET",
    "RunningPayments",
    "ScriptedGateway",
    "ScriptedOrders",
    "Step",
    "order_event",
    "running_payments",
]
