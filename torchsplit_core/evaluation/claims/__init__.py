"""Four claims about plans, each with its comparisons, its verdict and the figures behind it."""
