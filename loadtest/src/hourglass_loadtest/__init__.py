"""Benchmarks of the queue: workload files, run on real processes, with their results as a table and as JSON."""
