"""Evaluation of the planner: cases over a grid, four metrics, baselines, four claims with their verdicts."""
