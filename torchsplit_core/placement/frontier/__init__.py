"""Throughput against latency: the Pareto-optimal pipelines of a request."""

from torchsplit_core.placement.frontier.frontier import frontier
from torchsplit_core.placement.frontier.verification import frontier_violations, verify_frontier

__all__ = ["frontier", "frontier_violations", "verify_frontier"]
