"""The answer: assignments to slices, their figures, the outcome's values."""
