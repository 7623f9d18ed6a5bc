"""Batches that other processes fetch ahead, and those of a loader whose samples have no number."""
