"""GPUs for the segments of a latency program, and their order: those of a component behind each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchsplit_core.placement.latency.program import Chosen
from torchsplit_core.placement.latency.tiers import Site
from torchsplit_core.placement.model.instance import Segments

_Segment = tuple[int, tuple[int, ...]]


class _Free:
    """The GPUs of a component that are not in use, and what stands where."""

    def __init__(self, root: Site, kinds: tuple[int, ...]) -> None:
        self.used: set[int] = set()
        self.at: dict[int, list[_Segment]] = {}
        self.opened: set[int] = set()
        self._kinds = kinds
        self._above: dict[int, Site] = {}
        self._note(root)

    def _note(self, site: Site) -> None:
        for part in site.parts:
            self._above[id(part)] = site
            self._note(part)

    def take(self, site: Site, wanted: tuple[int, ...], layers: int) -> bool:
        """Put a segment on free GPUs of these kinds; False where the component has too few."""
        gpus: list[int] = []
        for kind in dict.fromkeys(wanted):
            able = [gpu for gpu in site.gpus if gpu not in self.used and self._kinds[gpu] == kind]
            if len(able) < wanted.count(kind):
                return False
            gpus += able[: wanted.count(kind)]
        self.used |= set(gpus)
        self.at.setdefault(id(site), []).append((layers, tuple(sorted(gpus))))
        while id(site) not in self.opened:
            self.opened.add(id(site))
            site = self._above.get(id(site), site)
        return True

    def distance(self, site: Site) -> tuple[int, int]:
        """How many components from this one up have no segment yet, and how many GPUs are free: less is better."""
        steps, at = 0, site
        while id(at) not in self.opened and id(at) in self._above:
            steps, at = steps + 1, self._above[id(at)]
        return steps, sum(gpu not in self.used for gpu in site.gpus)


def assign(
    root: Site, chosen: Sequence[Chosen], multisets: Sequence[tuple[int, ...]], kinds: tuple[int, ...]
) -> Segments:
    """Segments in pipeline order within this component; empty where its parts have no room for them."""
    free, inside = _Free(root, kinds), set(root.gpus)
    wanted = [(one, layers) for one in chosen for layers in one.layers]
    # Large segments first, in the finest components first.
    wanted.sort(key=lambda each: (each[0].sort.level, -len(multisets[each[0].multiset]), each[0].multiset))
    for one, layers in wanted:
        sites = [site for site in one.sort.sites if inside.issuperset(site.gpus)]
        for site in sorted(sites, key=free.distance):
            if free.take(site, multisets[one.multiset], layers):
                break
        else:
            return ()
    return tuple(_in_order(root, free))


def _in_order(site: Site, free: _Free) -> list[_Segment]:
    found: list[_Segment] = []
    for part in site.parts:
        found += _in_order(part, free)
    return found + free.at.get(id(site), [])


def spread(wanted: tuple[int, ...], kinds: tuple[int, ...]) -> tuple[int, ...]:
    """The first GPUs of these kinds, whatever links they have."""
    gpus: list[int] = []
    for kind in dict.fromkeys(wanted):
        gpus += np.flatnonzero(np.array(kinds) == kind)[: wanted.count(kind)].tolist()
    return tuple(sorted(gpus))
