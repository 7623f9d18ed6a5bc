"""Searches for cuts: prefixes, ideals, windows, assignments to devices."""
