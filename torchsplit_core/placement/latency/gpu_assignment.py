"""GPUs for the segments of a latency program, in an order that keeps each domain's segments together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchsplit_core.placement.latency.program import ChosenSegments
from torchsplit_core.placement.latency.topology import NetworkDomain
from torchsplit_core.placement.model.instance import Segments

_Segment = tuple[int, tuple[int, ...]]


class _FreeGpus:
    """The unused GPUs of a domain, and its assigned segments."""

    def __init__(self, root: NetworkDomain, kinds: tuple[int, ...]) -> None:
        self.used: set[int] = set()
        self.segments_at: dict[int, list[_Segment]] = {}
        self.opened: set[int] = set()
        self._kinds = kinds
        self._parent: dict[int, NetworkDomain] = {}
        self._link_parents(root)

    def _link_parents(self, domain: NetworkDomain) -> None:
        for part in domain.parts:
            self._parent[id(part)] = domain
            self._link_parents(part)

    def assign_segment(self, domain: NetworkDomain, wanted: tuple[int, ...], layers: int) -> bool:
        """Assign a segment to free GPUs of these kinds; False if the domain has too few."""
        gpus: list[int] = []
        for kind in dict.fromkeys(wanted):
            able = [gpu for gpu in domain.gpus if gpu not in self.used and self._kinds[gpu] == kind]
            if len(able) < wanted.count(kind):
                return False
            gpus += able[: wanted.count(kind)]
        self.used |= set(gpus)
        self.segments_at.setdefault(id(domain), []).append((layers, tuple(sorted(gpus))))
        while id(domain) not in self.opened:
            self.opened.add(id(domain))
            domain = self._parent.get(id(domain), domain)
        return True

    def distance(self, domain: NetworkDomain) -> tuple[int, int]:
        """Sort key, smaller first: how many domains from this one up have no segment yet, and its free GPUs."""
        steps, at = 0, domain
        while id(at) not in self.opened and id(at) in self._parent:
            steps, at = steps + 1, self._parent[id(at)]
        return steps, sum(gpu not in self.used for gpu in domain.gpus)


def assign_gpus(
    root: NetworkDomain,
    chosen: Sequence[ChosenSegments],
    multisets: Sequence[tuple[int, ...]],
    kinds: tuple[int, ...],
) -> Segments:
    """Segments of this domain in pipeline order; empty if its parts have no room for them."""
    free, inside = _FreeGpus(root, kinds), set(root.gpus)
    wanted = [(group, layers) for group in chosen for layers in group.layers]
    # Large segments first, in the smallest domains first.
    wanted.sort(
        key=lambda each: (each[0].domain_class.level, -len(multisets[each[0].multiset]), each[0].multiset)
    )
    for group, layers in wanted:
        domains = [domain for domain in group.domain_class.domains if inside.issuperset(domain.gpus)]
        for domain in sorted(domains, key=free.distance):
            if free.assign_segment(domain, multisets[group.multiset], layers):
                break
        else:
            return ()
    return tuple(_segments_in_order(root, free))


def _segments_in_order(domain: NetworkDomain, free: _FreeGpus) -> list[_Segment]:
    segments: list[_Segment] = []
    for part in domain.parts:
        segments += _segments_in_order(part, free)
    return segments + free.segments_at.get(id(domain), [])


def first_of_kinds(wanted: tuple[int, ...], kinds: tuple[int, ...]) -> tuple[int, ...]:
    """The first GPUs of these kinds, regardless of links."""
    gpus: list[int] = []
    for kind in dict.fromkeys(wanted):
        gpus += np.flatnonzero(np.array(kinds) == kind)[: wanted.count(kind)].tolist()
    return tuple(sorted(gpus))
