"""Seconds of collectives: rings over the two tiers of a cluster."""

from __future__ import annotations

from math import log2

from torchsplit_core.profiling.host_rates import HostRates
from torchsplit_core.strategy.cost_model.constants import Constants
from torchsplit_core.values.training import TrainingCluster


class HostNetwork:
    """Processes of one measured host that exchange over Gloo. Pairs were measured; larger groups follow the ring."""

    __slots__ = ("rates",)

    def __init__(self, rates: HostRates) -> None:
        self.rates = rates

    def gather(self, size_bytes: float, size: int, stride: int) -> float:
        """All-gather (or reduce-scatter): half of an all-reduce."""
        return self.reduce(size_bytes, size, stride) / 2.0

    def reduce(self, size_bytes: float, size: int, stride: int) -> float:
        """All-reduce: the measured seconds for two; for n processes, 2 (n − 1) / n times the bytes pass each."""
        if size <= 1:
            return 0.0
        ring = 2.0 * (size - 1) / size
        return self.rates.exchange_s * log2(size) + ring * size_bytes / self.rates.exchange_bytes_per_s

    def send(self, size_bytes: float, stride: int) -> float:
        """Seconds from one pipeline stage to the next."""
        return self.rates.exchange_s + size_bytes / self.rates.exchange_bytes_per_s


class Network:
    """The cluster's speeds. A group has a size, and a distance between neighbours (`stride`)."""

    __slots__ = ("hop_s", "inside", "latency_s", "node", "per_node")

    def __init__(self, cluster: TrainingCluster, c: Constants) -> None:
        self.per_node = cluster.gpus_per_node
        self.inside = cluster.inside_bytes_per_s * c.inside_share
        self.node = cluster.between_bytes_per_s * c.between_share
        self.latency_s = c.inside_latency_s
        self.hop_s = c.hop_s

    def within(self, size: int, stride: int) -> bool:
        """Whether a group of that size and stride lies within one node."""
        return size * stride <= self.per_node

    def rate(self, size: int, stride: int) -> float:
        """Bytes/s at which a ring passes a member: the link inside a node, or the member's share of the node's network
        cards, which all groups of the node share."""
        if self.within(size, stride):
            return self.inside
        members = max(1, self.per_node // stride)
        return min(self.inside, self.node * members / self.per_node)

    def gather(self, size_bytes: float, size: int, stride: int) -> float:
        """All-gather (or reduce-scatter) of `size_bytes` in total: (n − 1)/n of them pass each member (ring)."""
        if size <= 1:
            return 0.0
        passed = size_bytes * (size - 1) / size / self.rate(size, stride)
        if self.within(size, stride):
            return passed + self.latency_s * log2(size)
        return passed + self.hop_s * size

    def reduce(self, size_bytes: float, size: int, stride: int) -> float:
        """All-reduce: a reduce-scatter and an all-gather; its latency counts only once."""
        if size <= 1:
            return 0.0
        passed = 2.0 * size_bytes * (size - 1) / size / self.rate(size, stride)
        if self.within(size, stride):
            return passed + self.latency_s * log2(size)
        return passed + self.hop_s * size

    def send(self, size_bytes: float, stride: int) -> float:
        """Seconds from one pipeline stage to the next; every device sends its own part."""
        rate = self.inside if 2 * stride <= self.per_node else min(self.inside, self.node / self.per_node)
        return size_bytes / rate + self.latency_s
