"""Throughput, memory and latency of segments, and the division of a batch."""
