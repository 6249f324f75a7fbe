"""A service's database: units of work, with the messages, inbox and keys of each unit.

`units` (transactions, inbox, idempotency keys) and `outbox` are ports and rules, which a service's use cases import;
they know no SQL. `database` gives connections, units and dates, on SQLite and on PostgreSQL alike (`backends`);
`tables` has the tables of the ports; `schema` names, counts and migrates. Imports nothing of `http` and `process`.
"""
