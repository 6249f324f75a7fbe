"""The use cases of orders: each one in one file, against ports for the database, the queue, time and chance."""
