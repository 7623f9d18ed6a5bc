"""A graph prepared for cutting: folded, fused, weights charged to readers; and reports of every step."""
