"""A plan changed by hand."""
