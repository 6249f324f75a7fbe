"""Orders and their transitions: plain values and pure functions, no database, no network, no clock."""
