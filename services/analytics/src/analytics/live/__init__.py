"""The streaming job without an end, and its progress as metrics."""
