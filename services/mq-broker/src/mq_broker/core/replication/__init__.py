"""Replication as decisions without input or output: epochs, what a master may confirm, where a slave has to begin."""
