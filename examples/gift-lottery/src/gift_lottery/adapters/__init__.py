"""The database that the lottery keeps its tickets in."""
