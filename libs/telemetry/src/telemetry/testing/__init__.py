"""What tests of telemetry need: a receiver of OTLP for other processes, and a recorder for this one."""
