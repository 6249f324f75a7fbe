"""Files and clocks of the measurements."""
