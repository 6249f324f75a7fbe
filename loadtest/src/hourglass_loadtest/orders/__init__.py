"""The benchmark of POST /orders: real processes, PostgreSQL, the broker, and a client that costs next to nothing."""
