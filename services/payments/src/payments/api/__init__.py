"""The HTTP API of payments: FastAPI routes over the use cases, and errors as RFC 9457 problems."""
