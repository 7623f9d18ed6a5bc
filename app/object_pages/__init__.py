"""The pages of one object: a model, a scenario, a placement, a training, a run; each with its tabs."""
