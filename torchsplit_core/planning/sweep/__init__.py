"""Sweeps: one parameter of a request over a range."""
