"""What whole models take of shared slices: bounds of a level by their prices, and plans of one pattern a model."""
