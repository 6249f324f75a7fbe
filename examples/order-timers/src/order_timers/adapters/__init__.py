"""The file that the comparison is kept in."""
