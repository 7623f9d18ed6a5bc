"""Manual plans: evaluation, moves, what-if plans."""
