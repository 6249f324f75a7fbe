"""mqadmin: what an operator asks of the queue, on the command line (MISSION N11, Q1, Q2)."""
