"""Traces: what was asked for over time."""
