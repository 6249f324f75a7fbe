"""Delayed messages: the delay levels, and the timer for any other time."""
