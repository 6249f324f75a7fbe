"""Hourglass as local processes: the demonstration, `make up`, and clusters for tests with real processes."""
