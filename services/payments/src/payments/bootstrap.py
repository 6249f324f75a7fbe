"""Puts the parts together over whatever ports they are given: use cases, routes, consumers, resumer and relay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fastapi import FastAPI

from osenv import Clock, Rng
from payments.adapters.sql_unit_of_work import SqlUnitOfWork
from payments.api.application import build_api
from payments.api.routes import UseCases
from payments.config import Config
from payments.service import events
from payments.service.gateway import OrderHolds, PatientGateway, PaymentGateway
from payments.service.pay_order import PayableOrders, PayOrder
from payments.service.queries import Queries
from payments.service.receive_event import ReceiveEvent, WebhookSignatures
from payments.service.refund_payment import RefundPart, RefundPayment, RetryRefund
from payments.service.resumer import CapturesCheck, LateCapturesCheck, Resumer
from payments.service.settlement import Bookkeeper, Settlement
from payments.service.use_case import NOT_METERED, PaymentMeter, UnitOfWork, Units
from servicekit.auth import Tokens
from servicekit.background import WakeUp
from servicekit.message import Subscription
from servicekit.monitoring import Health, HealthCheck
from servicekit.process.reconciler import SWEEP_WINDOW_MS, ParkedTransactions, ParkedTransactionsCheck, Reconciler
from servicekit.sql.database import Database, SqlUnits
from servicekit.sql.outbox import OutboxPublisher, OutboxRelay
from servicekit.sql.units import Queue, TransactionalPublisher

TAGS = f"{events.CREATED_TAG} || {events.CLOSED_TAG} || {events.PAID_TAG}"


def payable_orders(orders: PayableOrders) -> Subscription:
    """Reads `order-events`.

    Group `payable-orders`: payments learns which orders can be paid, and which no longer.
    """

    async def handle(body: bytes) -> None:
        await orders.learn(events.read_order_event(body))

    return Subscription(events.PAYABLE_ORDERS_GROUP, events.ORDER_EVENTS_TOPIC, TAGS, handle)


def refund_handler(refund_payment: RefundPayment) -> Subscription:
    """Reads `order-events`/`refund-requested`.

    Group `refund-handler`: money of an order that is closed goes back.
    """

    async def handle(body: bytes) -> None:
        await refund_payment(events.read_refund_requested(body))

    return Subscription(events.REFUND_HANDLER_GROUP, events.ORDER_EVENTS_TOPIC, events.REFUND_REQUESTED_TAG, handle)


@dataclass(frozen=True, slots=True)
class Application:
    """Payments, composed and not started."""

    units: Units
    transactions: TransactionalPublisher[UnitOfWork]
    use_cases: UseCases
    resumer: Resumer
    reconciler: Reconciler
    relay: OutboxRelay[UnitOfWork]
    tokens: Tokens
    subscriptions: tuple[Subscription, ...]
    api: FastAPI


def bootstrap(  # noqa: PLR0917 - the ports, in the order of every composition
    config: Config,
    database: Database,
    gateway: PaymentGateway,
    queue: Queue,
    clock: Clock,
    rng: Rng,
    *,
    parked: ParkedTransactions,
    order_holds: OrderHolds,
    is_queue_there: Callable[[], bool],
    health_parts: Mapping[str, HealthCheck],
    meter: PaymentMeter = NOT_METERED,
    sweep_window_ms: int | None = SWEEP_WINDOW_MS,
) -> Application:
    """Everything that runs on these ports; `health_parts` are asked beside the database."""
    units = SqlUnits(database, SqlUnitOfWork)
    patient_gateway = PatientGateway(gateway, clock)
    transactions: TransactionalPublisher[UnitOfWork] = TransactionalPublisher(units, queue, clock)
    relay_wake, resumer_wake = WakeUp(), WakeUp()
    publisher = OutboxPublisher(units, transactions, clock, relay_wake, is_queue_there=is_queue_there)
    bookkeeper = Bookkeeper(units, publisher, clock, order_holds, meter)
    settlement = Settlement(
        units, patient_gateway, bookkeeper, order_holds, clock, charge_late_max_ms=config.charge_late_max_ms
    )
    resumer = Resumer(units, settlement, clock, resumer_wake, silence_ms=config.gateway_silence_ms)
    refund_payment = RefundPayment(units, settlement, resumer_wake, clock)
    captures = CapturesCheck(
        units, queue, refund_payment, clock, after_ms=config.reconcile_after_ms, window_ms=sweep_window_ms
    )
    late_captures = LateCapturesCheck(units, patient_gateway, bookkeeper, clock, window_ms=sweep_window_ms)
    reconciler = Reconciler(
        (ParkedTransactionsCheck(parked, transactions.check, clock), captures, late_captures),
        clock,
        interval_s=config.reconcile_interval_ms / 1000,
        rows_max=config.reconcile_rows_max,
    )
    tokens = Tokens(config.auth_keys, clock)

    # Without the gateway this process still takes webhooks, payments and questions (ADR 121).
    health = Health({"database": database.health, **health_parts}, clock)
    use_cases = UseCases(
        pay_order=PayOrder(units, settlement, resumer_wake, clock, rng, is_queue_there=is_queue_there),
        refund_part=RefundPart(units, settlement, resumer_wake, clock),
        retry_refund=RetryRefund(units, bookkeeper, settlement, resumer_wake),
        receive_event=ReceiveEvent(units, bookkeeper),
        signatures=WebhookSignatures(config.webhook_secrets, clock),
        queries=Queries(units, patient_gateway),
    )
    return Application(
        units=units,
        transactions=transactions,
        use_cases=use_cases,
        resumer=resumer,
        reconciler=reconciler,
        relay=OutboxRelay(units, transactions, clock, relay_wake),
        tokens=tokens,
        subscriptions=(
            payable_orders(PayableOrders(units, clock)),
            refund_handler(refund_payment),
        ),
        api=build_api(
            use_cases,
            health,
            tokens=tokens,
            rate_limit=config.rate_limit,
            clock=clock,
            admission_limit=config.admission_limit,
        ),
    )
