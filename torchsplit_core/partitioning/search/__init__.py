"""The searches for a cut: prefixes, ideals, windows, assignments to devices."""
