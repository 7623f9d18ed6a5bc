"""Throughput against latency: the pipelines of one request that no other beats in both."""

from torchsplit_core.placement.frontier.frontier import frontier
from torchsplit_core.placement.frontier.verification import frontier_violations, verify_frontier

__all__ = ["frontier", "frontier_violations", "verify_frontier"]
