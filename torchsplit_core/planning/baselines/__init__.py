"""Plans as people make them without a solver, and what the solver gains over them."""
