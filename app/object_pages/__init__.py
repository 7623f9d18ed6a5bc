"""The page of one thing: a model, a scenario, a placement, each with the tabs that are about it."""
