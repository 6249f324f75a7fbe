"""What the HTTP faces of services share: errors as RFC 9457 problems, limits, health, idempotency keys."""
