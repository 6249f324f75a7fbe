"""What each request does. Plain values in, plain values out: no wire format is known here."""
