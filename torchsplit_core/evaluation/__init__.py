"""The seed's evaluation plan, run: cases over a grid, four metrics, baselines, four claims with their verdicts."""
