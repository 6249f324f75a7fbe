"""Decisions without input or output: state and an event in, state and results out."""
