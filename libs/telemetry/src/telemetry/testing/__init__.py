"""Helpers for tests of telemetry: a receiver of OTLP for other processes, and a recorder for this one."""
