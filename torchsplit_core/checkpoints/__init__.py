"""Checkpoints of training runs: written and completed, read safely, and their weights put together again."""
