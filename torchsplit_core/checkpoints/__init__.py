"""Checkpoints of training runs: write complete ones, read them safely, gather their weights."""
