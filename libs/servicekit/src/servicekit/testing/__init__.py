"""Fakes that keep the contracts of the ports, and what tests of services need again and again."""

from servicekit.testing.delivery import deliver
from servicekit.testing.recording_publisher import ProcessDeathError, RecordingPublisher, die
from servicekit.testing.waiting import until

__all__ = ["ProcessDeathError", "RecordingPublisher", "deliver", "die", "until"]
