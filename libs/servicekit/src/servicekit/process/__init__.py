"""A service as a process: the order of start and stop, its connection with the queue, its reconciler.

A service's root has a trio: `config.py` over `servicekit.config`, `app.py` over `runner.serve`, `__main__.py` over
`runner.run_service`. This package may import everything of the service kit; nothing else in the kit imports it.
"""
