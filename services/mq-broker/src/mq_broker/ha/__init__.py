"""Replication at work: a master that feeds its slaves, a slave that follows its master (MISSION H1-H5)."""
