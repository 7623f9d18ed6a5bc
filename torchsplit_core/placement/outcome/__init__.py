"""Outcomes: pipelines, infeasibility, verification without a solver."""
