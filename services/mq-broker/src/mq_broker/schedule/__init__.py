"""Messages that wait: the delay levels."""
