"""Verification of a plan from its request alone, without the solver."""
