"""The processing of each request. Plain values in, plain values out: no wire format is known here."""
