"""The outside world behind the gateway's ports: its database, and whoever receives its webhooks."""
