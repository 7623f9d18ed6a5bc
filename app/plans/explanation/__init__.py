"""Why the plan is as it is."""
