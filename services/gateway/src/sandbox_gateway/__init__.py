"""A payment gateway that moves no real money, and that fails as real ones do when it is told to.

It stands for an external system: it shares nothing with payments but this wire, and keeps its book through kill -9
(whatever it answers is committed before).

The wire: JSON over HTTP, with `Authorization: Bearer <API key>` on everything below /v1. Money is in minor units, times
are wall-clock milliseconds, errors are RFC 9457 problems.

    POST /v1/charges {charge_id, order_id, amount_minor, currency, method}
        202 {charge_id, ..., status: pending | captured | declined, decided_at_ms, decline_reason}
        An id names one charge for ever: the same terms again change nothing, other terms are rejected with 409.
    GET  /v1/charges/{charge_id}            200 as above; 404 unknown-charge
    POST /v1/refunds {refund_id, charge_id, amount_minor, currency}
        202 {refund_id, ..., status: pending | refunded, refunded_at_ms}; 409 for other terms; 422 for more than is left
    GET  /v1/refunds/{refund_id}            200 as above; 404 unknown-refund
    GET  /v1/book                           {captured_minor, refunded_minor, captures, refunds}
    GET, PUT /v1/failures                   {declined, late, late_ms, duplicated, reordered, never}
    GET  /health/live, /health/ready        without a key

Each decision is told by a webhook, which is stored in the transaction of the decision and sent until it is answered
with 2xx:

    POST <webhook URL>
    Gateway-Signature: t=<unix seconds>,v1=<hex HMAC-SHA256 with the secret, of "<t>." and the raw body>[,v1=...]
    {"event_id", "type": "charge.captured" | "charge.declined" | "refund.refunded", "occurred_at_ms",
     "data": {"charge_id", "order_id", "amount_minor", "currency", "decline_reason"?, "refund_id"?}}

The failures are shares of all charges, from 0 to 1. Seed and charge id choose, each failure for itself, so that a run
can be repeated; a setting holds for what is decided after it, and a restart goes back to GATEWAY_FAILURES.

    declined     the money is not taken
    late         the webhooks wait for so many milliseconds after the decision
    duplicated   each webhook is sent again after it was answered with 2xx
    reordered    each webhook waits for up to a second, and not for earlier ones of its charge, as it does otherwise
    never        no webhook is sent; what was decided is known on request
"""
