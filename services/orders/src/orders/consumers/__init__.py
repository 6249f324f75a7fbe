"""The consumer groups of orders: entry points like api, with messages for requests."""
