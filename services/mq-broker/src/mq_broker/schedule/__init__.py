"""Messages that wait for their time: the delay levels, and the timer for any other time."""
