"""What orders does: each use case in one file, against ports for the database, the queue, time and chance."""
