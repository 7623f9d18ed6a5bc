"""Routed co-locations: among plans of equal objective, one that sends the fewest bytes/s between GPUs."""
