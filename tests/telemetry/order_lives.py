"""The tables: the edges of the service graph, and the spans of an order's life with their parents.

A row names what has to be there at least. What one service does for another is a child of it; what waits in the queue
is a child of the broker's span, which tells for how long.
"""

from __future__ import annotations

from trace_checks import SQL, Edge, Life, Seen, Step

ORDERS, PAYMENTS, GATEWAY, BROKER = "orders", "payments", "sandbox-gateway", "mq-broker"

TIMEOUT_SCHEDULER, TIMEOUT_HANDLER = "order-timeout-scheduler", "order-timeout-handler"
COMPLETION_SCHEDULER, COMPLETION_HANDLER = "order-completion-scheduler", "order-completion-handler"
PAYMENT_HANDLER, PAYABLE_ORDERS, REFUND_HANDLER = "order-payment-handler", "payable-orders", "refund-handler"

ORDER_HALF = Seen(BROKER, "half order-events")
PAYMENT_HALF = Seen(BROKER, "half payment-events")

# ------------------------------------------------------------------------------------------------- the service graph

_EDGES_OF_ALL = (
    Edge(ORDERS, BROKER, "half order-events"),
    Edge(BROKER, ORDERS, "process order-events"),
    Edge(BROKER, PAYMENTS, "process order-events"),
    Edge(ORDERS, BROKER, "wait order-timeouts"),
    Edge(BROKER, ORDERS, "process order-timeouts"),
)
_EDGES_OF_PAID = (
    Edge(PAYMENTS, GATEWAY, "POST /v1/charges"),
    Edge(GATEWAY, PAYMENTS, "POST /webhooks/gateway"),
    Edge(PAYMENTS, BROKER, "half payment-events"),
    Edge(BROKER, ORDERS, "process payment-events"),
)
_EDGES_OF_SHIPPED = (
    Edge(ORDERS, BROKER, "wait order-completions"),
    Edge(BROKER, ORDERS, "process order-completions"),
)
_EDGES_OF_REFUNDED = (Edge(PAYMENTS, GATEWAY, "POST /v1/refunds"),)

# ------------------------------------------------------------------------------------------------- the spans


def _transaction(begun_by: Seen, service: str, topic: str, tag: str) -> tuple[Step, ...]:
    """A transactional message: the half, the local transaction with its SQL, the commit."""
    send = Seen(service, f"send {topic}", tag)
    local = Seen(service, f"transaction {topic}")
    return (
        Step(begun_by, send),
        Step(send, local),
        Step(local, Seen(service, SQL)),
        Step(send, Seen(service, f"commit {topic}")),
        Step(send, Seen(BROKER, f"half {topic}")),
    )


PLACED = (
    Step(None, Seen(ORDERS, "POST /orders")),
    *_transaction(Seen(ORDERS, "POST /orders"), ORDERS, "order-events", "created"),
    Step(ORDER_HALF, Seen(PAYMENTS, "process order-events", PAYABLE_ORDERS)),
    Step(Seen(PAYMENTS, "process order-events", PAYABLE_ORDERS), Seen(PAYMENTS, SQL)),
    Step(ORDER_HALF, Seen(ORDERS, "process order-events", TIMEOUT_SCHEDULER)),
    Step(Seen(ORDERS, "process order-events", TIMEOUT_SCHEDULER), Seen(ORDERS, "send order-timeouts")),
    Step(Seen(ORDERS, "send order-timeouts"), Seen(BROKER, "wait order-timeouts")),
    Step(Seen(BROKER, "wait order-timeouts"), Seen(ORDERS, "process order-timeouts", TIMEOUT_HANDLER)),
)
CLOSED = _transaction(Seen(ORDERS, "process order-timeouts", TIMEOUT_HANDLER), ORDERS, "order-events", "closed")
CAPTURED = (
    Step(Seen(PAYMENTS, "process order-events", PAYABLE_ORDERS), Seen(PAYMENTS, "settle payment")),
    Step(Seen(PAYMENTS, "settle payment"), Seen(PAYMENTS, "POST")),
    Step(Seen(PAYMENTS, "POST"), Seen(GATEWAY, "POST /v1/charges")),
    Step(Seen(GATEWAY, "POST /v1/charges"), Seen(GATEWAY, "decide charge")),
    Step(Seen(GATEWAY, "decide charge"), Seen(GATEWAY, "send webhook")),
    Step(Seen(GATEWAY, "send webhook"), Seen(GATEWAY, "POST")),
    Step(Seen(GATEWAY, "POST"), Seen(PAYMENTS, "POST /webhooks/gateway")),
    Step(Seen(PAYMENTS, "POST /webhooks/gateway"), Seen(PAYMENTS, "receive event")),
    *_transaction(Seen(PAYMENTS, "receive event"), PAYMENTS, "payment-events", "succeeded"),
    Step(PAYMENT_HALF, Seen(ORDERS, "process payment-events", PAYMENT_HANDLER)),
)
PAID = _transaction(Seen(ORDERS, "process payment-events", PAYMENT_HANDLER), ORDERS, "order-events", "paid")
SHIPPED = (
    Step(Seen(ORDERS, "POST /orders"), Seen(ORDERS, "ship order")),
    *_transaction(Seen(ORDERS, "ship order"), ORDERS, "order-events", "shipped"),
    Step(ORDER_HALF, Seen(ORDERS, "process order-events", COMPLETION_SCHEDULER)),
    Step(Seen(ORDERS, "process order-events", COMPLETION_SCHEDULER), Seen(ORDERS, "send order-completions")),
    Step(Seen(ORDERS, "send order-completions"), Seen(BROKER, "wait order-completions")),
    Step(Seen(BROKER, "wait order-completions"), Seen(ORDERS, "process order-completions", COMPLETION_HANDLER)),
    *_transaction(Seen(ORDERS, "process order-completions", COMPLETION_HANDLER), ORDERS, "order-events", "completed"),
)
REFUNDED = (
    Step(Seen(ORDERS, "POST /orders"), Seen(ORDERS, "cancel order")),
    *_transaction(Seen(ORDERS, "cancel order"), ORDERS, "order-events", "closed"),
    *_transaction(Seen(ORDERS, "transaction order-events"), ORDERS, "order-events", "refund-requested"),
    Step(ORDER_HALF, Seen(PAYMENTS, "process order-events", REFUND_HANDLER)),
    Step(Seen(PAYMENTS, "process order-events", REFUND_HANDLER), Seen(PAYMENTS, "refund payment")),
    Step(Seen(PAYMENTS, "refund payment"), Seen(PAYMENTS, "POST")),
    Step(Seen(PAYMENTS, "POST"), Seen(GATEWAY, "POST /v1/refunds")),
    *_transaction(Seen(PAYMENTS, "receive event"), PAYMENTS, "payment-events", "refunded"),
)
CHECKED = (
    Step(Seen(ORDERS, "send order-events", "created"), Seen(ORDERS, "check order-events")),
    Step(Seen(ORDERS, "check order-events"), Seen(ORDERS, SQL)),
    Step(Seen(ORDERS, "check order-events"), Seen(ORDERS, "commit order-events")),
)
RETRY = Seen(BROKER, f"wait %RETRY%{PAYMENT_HANDLER}")
GIVEN_UP = (
    # The unreadable message is sent by another program, in the context that the order keeps.
    Step(Seen(ORDERS, "POST /orders"), Seen(ORDERS, "process payment-events", PAYMENT_HANDLER)),
    Step(Seen(ORDERS, "POST /orders"), Seen(ORDERS, "send back payment-events", PAYMENT_HANDLER)),
    Step(Seen(ORDERS, "POST /orders"), RETRY),
    Step(RETRY, Seen(ORDERS, "process payment-events", PAYMENT_HANDLER)),
    Step(RETRY, Seen(ORDERS, "send back payment-events", PAYMENT_HANDLER)),
    Step(RETRY, Seen(BROKER, f"dead letter %DLQ%{PAYMENT_HANDLER}")),
)

# ------------------------------------------------------------------------------------------------- whole lives

CLOSED_ORDER = Life(_EDGES_OF_ALL, (*PLACED, *CLOSED))
SHIPPED_ORDER = Life((*_EDGES_OF_ALL, *_EDGES_OF_PAID, *_EDGES_OF_SHIPPED), (*PLACED, *CAPTURED, *PAID, *SHIPPED))
REFUNDED_ORDER = Life((*_EDGES_OF_ALL, *_EDGES_OF_PAID, *_EDGES_OF_REFUNDED), (*PLACED, *CAPTURED, *PAID, *REFUNDED))
CHECKED_ORDER = Life(_EDGES_OF_ALL, (*PLACED, *CLOSED, *CHECKED))
GIVEN_UP_ORDER = Life(_EDGES_OF_ALL, (*PLACED, *CLOSED, *GIVEN_UP))
