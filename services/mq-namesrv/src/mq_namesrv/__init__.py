"""The name server: which broker has which queues, in memory only (MISSION N1-N5)."""
