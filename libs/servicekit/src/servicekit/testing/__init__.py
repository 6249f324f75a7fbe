"""Fakes that keep the contracts of the ports, and what tests of services need again and again."""

from osenv import until
from servicekit.testing.publisher import ProcessDeathError, RecordingPublisher, deliver, die

__all__ = ["ProcessDeathError", "RecordingPublisher", "deliver", "die", "until"]
