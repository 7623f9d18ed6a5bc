"""Pipelines in a run: the traced model as a chain of blocks, stages of it, and the schedules of torch over them."""
