"""How requests travel. A transport is chosen by the scheme of the URL; only its own module knows how it works."""

from mqclient.transport.base import Channel, Method, NameServerSource, Stream, Transport
from mqclient.transport.registry import open_transport

__all__ = ["Channel", "Method", "NameServerSource", "Stream", "Transport", "open_transport"]
