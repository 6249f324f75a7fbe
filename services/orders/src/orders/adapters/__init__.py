"""The outside world behind the service's ports: the database and the queue, and their stand-ins for tests."""
