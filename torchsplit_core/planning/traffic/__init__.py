"""Routed co-locations: among plans of equal objective, the one that sends the fewest bytes/s between GPUs."""
