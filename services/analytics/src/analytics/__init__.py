"""The shop's events as tables (MISSION Y6-Y9)."""
