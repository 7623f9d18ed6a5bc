"""This machine, now."""
