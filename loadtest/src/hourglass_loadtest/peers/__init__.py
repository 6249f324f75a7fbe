"""Hourglass beside other queues: the same work on each, one server at a time, on one machine."""
