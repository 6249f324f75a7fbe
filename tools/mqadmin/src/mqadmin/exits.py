"""What mqadmin's exit codes mean; README.md says the same."""

from __future__ import annotations

OK = 0
FAILED = 1  # the cluster refused, did not answer, or somebody said no to a question
USAGE = 2  # the command line makes no sense
NOT_FOUND = 3  # what was looked for is not there
INTERRUPTED = 130  # Ctrl-C; Typer ends the process with it
