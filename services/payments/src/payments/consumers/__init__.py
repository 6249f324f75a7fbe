"""The consumer groups of payments: entry points like api, with messages for requests."""
