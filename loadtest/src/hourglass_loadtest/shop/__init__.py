"""The shop under load: this process starts it, has Locust play its buyers, waits for the end, and tells how it was.

options.py      what can be asked for, on the command line and in LOAD_* variables
targets.py      the shop: local processes, or one that runs already at some URLs
locust_run.py   Locust as a process of its own
watch.py        processor time, memory and lag, second by second
keeping.py      what stays of local processes, for the pipeline
ending.py       until every order has ended; invariants, lateness of closes
summary.py      what it all came to, as a document
picture.py      the charts
page.py         the report as an HTML page
load.py, overload.py, chaos.py   the three commands
"""
