"""One tenant a slice: the exact plan."""
