"""Fakes that keep the contracts of the ports, and what tests of services need again and again."""

from osenv import until
from servicekit.testing.delivery import deliver
from servicekit.testing.recording_publisher import ProcessDeathError, RecordingPublisher, die

__all__ = ["ProcessDeathError", "RecordingPublisher", "deliver", "die", "until"]
