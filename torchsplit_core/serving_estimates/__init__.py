"""Figures of LLM serving predicted row by row: an engine from its decoder's sizes, simulated to the token."""
