"""A graph made ready for cutting: what is folded, fused, charged to its readers, and what every step did."""
