"""What the dashboard of the shop shows."""

from __future__ import annotations

from panels import ORANGE, RED, Dashboard, Panel, Row, Variable, quantile, quantiles, rate

JOB = 'job=~"$job"'
HTTP = "http_server_request_duration_seconds"
STATUS = "hourglass_order_status"

ORDERS = Row(
    "Orders",
    (
        Panel(
            "Waiting for payment",
            "Orders that are not paid yet and whose time is not over.",
            ((f'max(hourglass_orders_by_status{{{STATUS}="PENDING_PAYMENT"}})', ""),),
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Paid of placed",
            "Conversion: orders paid for each order placed, over the range of the dashboard.",
            (
                (
                    "sum(increase(hourglass_orders_paid_total[$__range]))"
                    " / sum(increase(hourglass_orders_placed_total[$__range]))",
                    "",
                ),
            ),
            unit="percentunit",
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Closed too late, p99",
            "Of orders that expired: closed_at minus expires_at, over the range. Alert OrdersCloseLate at 5 s.",
            (
                (
                    quantile(0.99, "hourglass_orders_close_lateness_seconds", range_="$__range"),
                    "",
                ),
            ),
            unit="s",
            kind="stat",
            width=4,
            height=4,
            steps=((1, ORANGE), (5, RED)),
        ),
        Panel(
            "Outbox",
            "Events of payments that the queue has not taken yet. More than none for minutes: alert OutboxWaiting.",
            (("max(hourglass_outbox_waiting)", ""),),
            kind="stat",
            width=4,
            height=4,
            steps=((1, ORANGE),),
        ),
        Panel(
            "Failing requests",
            "Share of answers with a status of 500 or more, over the last five minutes; shed requests are in it.",
            (
                (
                    f'(sum(rate({HTTP}_count{{http_response_status_code=~"5.."}}[5m])) or vector(0))'
                    f" / sum(rate({HTTP}_count[5m]))",
                    "",
                ),
            ),
            unit="percentunit",
            kind="stat",
            width=4,
            height=4,
            steps=((0.02, RED),),
        ),
        Panel(
            "Shed requests",
            "Requests a second that were turned away so that the others are served in time.",
            (("sum(rate(hourglass_http_requests_shed_total[5m])) or vector(0)", ""),),
            unit="reqps",
            kind="stat",
            width=4,
            height=4,
            steps=((0.1, ORANGE),),
        ),
        Panel(
            "Orders a minute",
            "What happens to orders: placed, paid, and closed by reason.",
            (
                (rate("hourglass_orders_placed_total", per_minute=True), "placed"),
                (rate("hourglass_orders_paid_total", per_minute=True), "paid"),
                (
                    rate("hourglass_orders_closed_total", by="hourglass_order_close_reason", per_minute=True),
                    "closed: {{hourglass_order_close_reason}}",
                ),
            ),
        ),
        Panel(
            "Orders by status",
            "All orders of the database; closed and completed ones are left out, because they only grow.",
            ((f'max by ({STATUS}) (hourglass_orders_by_status{{{STATUS}!~"CLOSED|COMPLETED"}})', f"{{{{{STATUS}}}}}"),),
            stacked=True,
        ),
        Panel(
            "Close lateness",
            "Of orders that expired: closed_at minus expires_at.",
            quantiles("hourglass_orders_close_lateness_seconds"),
            unit="s",
            steps=((5, RED),),
        ),
    ),
)

PAYMENTS = Row(
    "Payments",
    (
        Panel(
            "Payments a minute",
            "Captured, declined, and sent back.",
            (
                (rate("hourglass_payments_succeeded_total", per_minute=True), "succeeded"),
                (rate("hourglass_payments_failed_total", per_minute=True), "failed"),
                (rate("hourglass_payments_refunded_total", per_minute=True), "refunded"),
            ),
        ),
        Panel(
            "Settlement",
            "From the intent to its end, captured or declined: mostly the gateway's time.",
            quantiles("hourglass_payments_settlement_duration_seconds"),
            unit="s",
        ),
        Panel(
            "Events in the outbox",
            "Money has moved, and the queue has not been told.",
            (("max by (job) (hourglass_outbox_waiting)", "{{job}}"),),
            steps=((1, RED),),
        ),
    ),
)

REQUESTS = Row(
    "HTTP",
    (
        Panel(
            "Requests",
            "Requests a second by service; /health is not counted.",
            ((rate(f"{HTTP}_count", by="job", where=JOB), "{{job}}"),),
            unit="reqps",
        ),
        Panel(
            "Latency",
            "From the request's arrival to the end of its answer. Streams of events last for minutes and are left out.",
            quantiles(HTTP, by="job", where=f'{JOB}, http_route!~".*events.*"', legend="{{job}}"),
            unit="s",
        ),
        Panel(
            "Slowest routes, p99",
            "The five slowest routes.",
            (
                (
                    f"topk(5, {quantile(0.99, HTTP, by='job, http_request_method, http_route', where=JOB)})",
                    "{{job}} {{http_request_method}} {{http_route}}",
                ),
            ),
            unit="s",
        ),
        Panel(
            "Errors by route",
            "Answers a second with a status of 500 or more.",
            (
                (
                    rate(
                        f"{HTTP}_count",
                        by="job, http_route, http_response_status_code",
                        where=f'{JOB}, http_response_status_code=~"5.."',
                    ),
                    "{{job}} {{http_route}} {{http_response_status_code}}",
                ),
            ),
            unit="reqps",
        ),
        Panel(
            "In flight",
            "Requests that are in work. Flat at the admission limit: more comes in than can be done.",
            ((f"sum by (job) (hourglass_http_requests_in_flight{{{JOB}}})", "{{job}}"),),
        ),
        Panel(
            "Shed",
            "Requests a second answered 503 with Retry-After, by method. Alert RequestsShed at one in twenty.",
            (
                (
                    rate("hourglass_http_requests_shed_total", by="job, http_request_method", where=JOB),
                    "{{job}} {{http_request_method}}",
                ),
            ),
            unit="reqps",
        ),
    ),
)

SHOP = Dashboard(
    "hourglass-shop",
    "The shop",
    "Orders, payments and the HTTP interfaces.",
    (ORDERS, PAYMENTS, REQUESTS),
    (Variable("job", "Service", f"{HTTP}_count", "job"),),
)
