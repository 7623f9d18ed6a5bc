"""The four claims of the seed, each with its comparisons, its verdict and the figures behind it."""
