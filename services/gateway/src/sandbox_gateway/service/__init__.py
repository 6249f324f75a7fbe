"""What the gateway does, against ports for database, receiver of webhooks, time and chance."""
