"""Cheapest slices, or GPUs of a co-located set, that reach a throughput."""
