"""The name server: which broker has which queues, in memory only (mechanisms N1-N5)."""
