"""Puts the parts together: use cases, routes, consumers and resumer over whatever ports they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fastapi import FastAPI

from osenv import Clock, Rng
from payments.adapters.sql_units import SqlUnits
from payments.api.application import build_api
from payments.api.dependencies import UseCases
from payments.consumers.payable_orders import payable_orders
from payments.consumers.refund_handler import refund_handler
from payments.service.gateway import PatientGateway, PaymentGateway
from payments.service.pay_order import PayOrder
from payments.service.payable_orders import PayableOrders
from payments.service.queries import Queries
from payments.service.refund_payment import RefundPayment
from payments.service.resumer import Resumer, ResumerWake
from payments.service.settlement import Settlement
from payments.service.unit_of_work import UnitOfWork, Units
from servicekit.adapters.database import Database
from servicekit.health import OK, Health, HealthCheck
from servicekit.subscription import Subscription
from servicekit.transactions import TransactionalPublisher, TransactionalQueue, TransactionCheck


@dataclass(frozen=True, slots=True)
class Application:
    """Payments, composed and not started; `check` answers the queue's questions about transactions."""

    units: Units
    use_cases: UseCases
    resumer: Resumer
    subscriptions: tuple[Subscription, ...]
    check: TransactionCheck
    api: FastAPI


def bootstrap(
    database: Database,
    gateway: PaymentGateway,
    queue: TransactionalQueue,
    clock: Clock,
    rng: Rng,
    *,
    is_queue_there: Callable[[], bool],
    health_parts: Mapping[str, HealthCheck],
) -> Application:
    """Everything that runs on these ports; `health_parts` say "ok", or what is wrong with them."""
    units = SqlUnits(database)
    patient_gateway = PatientGateway(gateway, clock)
    publisher: TransactionalPublisher[UnitOfWork] = TransactionalPublisher(units, queue, clock)
    wake = ResumerWake()
    settlement = Settlement(units, patient_gateway, publisher, clock)
    resumer = Resumer(units, settlement, clock, wake)

    async def unfinished_health() -> str:
        return OK if resumer.left == 0 else f"{resumer.left} payments or refunds could not be finished yet"

    health = Health(
        {
            "database": database.health,
            "gateway": patient_gateway.health,
            "unfinished": unfinished_health,
            **health_parts,
        }
    )
    use_cases = UseCases(
        pay_order=PayOrder(units, settlement, wake, clock, rng, is_queue_there=is_queue_there),
        queries=Queries(units, patient_gateway),
    )
    subscriptions = (
        payable_orders(PayableOrders(units, clock)),
        refund_handler(RefundPayment(units, settlement, wake, clock)),
    )
    return Application(units, use_cases, resumer, subscriptions, publisher.check, build_api(use_cases, health))
