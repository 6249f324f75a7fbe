"""Three ways to close an unpaid order behind one port: a poller, an in-process delay queue, and the message queue.

`python -m order_timers` lets them serve the same simulated buyers and compares what they cost (mechanisms X4-X7).
"""
