"""The shop's events as tables (mechanisms Y6-Y9)."""
