"""Load tests: a plan served, loaded, and compared with what plan and simulation predicted."""
