"""A service as a process: its configuration, what starts and stops in which order, its connection with the queue.

A service's root has a trio: `config.py` over `config`, `app.py` over `runner`, `__main__.py` over `runner.run_service`.
This package may import everything of the service kit; nothing else in the kit imports it.
"""
