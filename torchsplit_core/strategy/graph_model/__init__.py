"""Training of any traced model: what its graph costs forward and backward, what it keeps, how it is divided."""
