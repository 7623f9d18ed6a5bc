"""A run measured on held-out samples while it trains."""
