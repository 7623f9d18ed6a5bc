"""The commands about training: estimates and strategies, and runs."""
