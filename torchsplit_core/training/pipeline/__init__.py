"""Pipelines in a run: the traced model as a chain of blocks, its stages, and torch's schedules over them."""
