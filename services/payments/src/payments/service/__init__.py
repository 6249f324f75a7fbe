"""What payments does: each use case in one file, against ports for database, gateway, queue, time and chance."""
