"""Training of any traced model: forward and backward cost of its graph, what it saves, how it is divided."""
