"""The commands on training: estimates, strategies, runs, weights."""
