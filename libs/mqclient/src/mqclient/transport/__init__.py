"""How requests travel. A transport is chosen by the scheme of the URL; only its own module knows how it works."""

from mqclient.transport.base import Channel, Method, Stream, Transport
from mqclient.transport.registry import open_transport

__all__ = ["Channel", "Method", "Stream", "Transport", "open_transport"]
