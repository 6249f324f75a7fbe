"""A gift lottery for buyers who have paid: one more consumer group on `order-events` (mechanism X8).

Nothing in orders knows of it. It reads what orders says anyway, keeps its own small database, and can be stopped,
changed or removed without an effect on any other service.
"""
