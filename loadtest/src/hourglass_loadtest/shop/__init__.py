"""The shop under load: this process starts it, has Locust play its buyers, waits for the end, and tells how it was.

command.py      the commands, chaos among them
options.py      what can be asked for, on the command line and in LOAD_* variables; the shop that comes of it, and what
                stays of it for the pipeline
load.py         one load by Locust, and its report
overload.py     what the shop can sustain, and what is left of it at twice as much
summary.py      processor time, memory and lag, second by second; the end of every order; what it all came to
page.py         the report as an HTML page with pictures
"""
