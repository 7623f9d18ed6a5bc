"""Confidence in a plan: whether demands hold at the low end of its points' intervals, and what to measure next."""
