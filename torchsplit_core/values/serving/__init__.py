"""A plan that runs: what was measured of it, which servers its models have, and the data types that these speak."""
