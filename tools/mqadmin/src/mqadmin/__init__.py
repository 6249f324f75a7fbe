"""mqadmin: the operator's command line (mechanisms N11, L13, Q1, Q2).

Sub-commands and flags have RocketMQ's names; docs/reference/mqadmin.md has all of them, with exit codes and JSON.

- `__main__` puts the sub-commands together; each module beside it that registers commands holds one subject.
- `errors` makes exit codes of errors, `world` is what commands need from outside, `options` and `output` are the common
  parts of what goes in and comes out.
"""
