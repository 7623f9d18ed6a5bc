"""A plan checked from its request alone, without the solver."""
