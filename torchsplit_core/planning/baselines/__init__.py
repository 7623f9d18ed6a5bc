"""Plans as people make them without a solver, and the gain of the solver's plan over them."""
