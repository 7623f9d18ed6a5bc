"""The planner evaluated: cases over a grid, four metrics, baselines, four claims with their verdicts."""
