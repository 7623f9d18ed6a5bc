"""A plan that runs: what was measured of it, and where the servers of its models are."""
