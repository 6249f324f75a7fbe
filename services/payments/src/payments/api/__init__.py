"""The HTTP face of payments (MISSION U3): FastAPI routes over the use cases, and errors as RFC 9457 problems."""
