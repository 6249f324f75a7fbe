"""Files, clocks and databases: what the programs touch outside Spark."""
