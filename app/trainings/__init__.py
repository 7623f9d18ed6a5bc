"""How a model is trained on a fleet."""
