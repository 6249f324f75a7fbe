"""The use cases of payments: each one in one file, against ports for database, gateway, queue, time and chance."""
