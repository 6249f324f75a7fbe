"""The outside world behind the service's ports: the database and the gateway, and a gateway for tests."""
