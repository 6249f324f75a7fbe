"""What a payment is and what may happen to it: plain values and pure functions, no database, no network, no clock."""
