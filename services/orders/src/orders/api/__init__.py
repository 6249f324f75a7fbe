"""The HTTP API of orders: FastAPI routes over the use cases, and errors as RFC 9457 problems."""
