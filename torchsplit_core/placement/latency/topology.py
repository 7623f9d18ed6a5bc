"""The network as a tree of domains: GPUs joined by the fastest links, these joined by slower ones, and so on.

The domains of level j are the components of the graph of links ≥ W_j, directions ignored, with W_1 > W_2 > …; each lies
within one of the next level. A hop that leaves a domain of level j uses a link slower than W_j. Domains that are alike
(as many GPUs of each kind, made of like domains) form a class and are counted.

            all GPUs                level 3, links ≥ 60
        pod 0       pod 1           level 2, links ≥ 250
    node  node    node  node        level 1, links ≥ 900
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

MOST_LEVELS = 6
"""Most levels, spread evenly over all if there are more: each adds columns of every choice in every domain class.
Chosen, not measured."""


@dataclass(frozen=True)
class NetworkDomain:
    """One domain. gpus: ascending; parts: the domains of the level below, by their first GPU."""

    level: int
    gpus: tuple[int, ...]
    parts: tuple[NetworkDomain, ...]


@dataclass(frozen=True)
class DomainClass:
    """Domains that are alike and lie within domains that are alike. sites: all of them, with `count` in each domain
    above. fleet: (kinds,), GPUs of each kind in one. parts: the classes inside one."""

    level: int
    domains: tuple[NetworkDomain, ...]
    count: int
    fleet: np.ndarray
    parts: tuple[DomainClass, ...]

    @cached_property
    def with_descendants(self) -> tuple[DomainClass, ...]:
        """This class, and all within it."""
        return (self, *(inner for part in self.parts for inner in part.with_descendants))


@dataclass(frozen=True)
class Tiers:
    """The levels of an instance's links. levels: W_1 > W_2 > …; labels: of each level, the domain of every GPU.

    below: of each level, the largest smaller link value. fastest: the largest of all; 0 without links.
    """

    levels: tuple[float, ...]
    labels: tuple[np.ndarray, ...]
    below: tuple[float, ...]
    fastest: float


def build_tiers(links: np.ndarray) -> Tiers:
    """The levels at which domains merge, a selection if there are many."""
    joined = np.maximum(links, links.T)
    np.fill_diagonal(joined, 0.0)
    values = np.unique(joined[joined > 0])
    if not len(values):
        return Tiers((), (), (), 0.0)
    # The fastest links have the least rank, so a minimum spanning tree has the links that join domains.
    rank = np.where(joined > 0, len(values) - np.searchsorted(values, joined), 0)
    tree = minimum_spanning_tree(csr_matrix(rank))
    merges = values[len(values) - np.unique(tree.data.astype(np.int64))]
    if len(merges) > MOST_LEVELS:
        merges = merges[np.unique(np.linspace(0, len(merges) - 1, MOST_LEVELS).round().astype(np.int64))]
    levels = tuple(np.sort(merges)[::-1].tolist())
    offdiagonal = np.unique(links[~np.eye(len(links), dtype=bool)])
    below = []
    for level in levels:
        slower = offdiagonal[offdiagonal < level]
        below.append(float(slower[-1]) if len(slower) else 0.0)
    return Tiers(levels, tuple(_labels(joined >= level) for level in levels), tuple(below), float(values[-1]))


def domain_classes_at(
    tiers: Tiers, links: np.ndarray, kinds: np.ndarray, threshold: float
) -> tuple[tuple[DomainClass, ...], tuple[int, ...]]:
    """The domain classes under links ≥ threshold, and the indices of the levels below them."""
    # If no slower link reaches the threshold, a level's domains are those of the threshold itself.
    faster = tuple(number for number, slower in enumerate(tiers.below) if slower >= threshold)
    joined = np.maximum(links, links.T) >= threshold
    labels = [*(tiers.labels[number] for number in faster), _labels(joined)]
    domains = _domains_at(labels, len(labels) - 1, tuple(range(len(kinds))))
    return _domain_classes(domains, kinds), faster


def _labels(joined: np.ndarray) -> np.ndarray:
    labels: np.ndarray = connected_components(csr_matrix(joined), directed=False)[1]
    return labels


def _domains_at(labels: list[np.ndarray], level: int, gpus: tuple[int, ...]) -> tuple[NetworkDomain, ...]:
    groups: dict[int, list[int]] = {}
    for gpu in gpus:
        groups.setdefault(int(labels[level][gpu]), []).append(gpu)
    return tuple(
        NetworkDomain(level, tuple(group), _domains_at(labels, level - 1, tuple(group)) if level else ())
        for group in groups.values()
    )


def _domain_classes(domains: tuple[NetworkDomain, ...], kinds: np.ndarray) -> tuple[DomainClass, ...]:
    """The classes of some domains of one level."""
    groups: dict[object, list[NetworkDomain]] = {}
    for domain in domains:
        groups.setdefault(_key(domain, kinds), []).append(domain)
    return tuple(_domain_class(tuple(group), len(group), kinds) for group in groups.values())


def _domain_class(domains: tuple[NetworkDomain, ...], count: int, kinds: np.ndarray) -> DomainClass:
    fleet = np.bincount(kinds[list(domains[0].gpus)], minlength=int(kinds.max()) + 1)
    inner: dict[object, list[NetworkDomain]] = {}
    for domain in domains:
        for part in domain.parts:
            inner.setdefault(_key(part, kinds), []).append(part)
    parts = tuple(_domain_class(tuple(group), len(group) // len(domains), kinds) for group in inner.values())
    return DomainClass(domains[0].level, domains, count, fleet, parts)


def _key(domain: NetworkDomain, kinds: np.ndarray) -> object:
    """Equal for domains that are alike."""
    kind_counts = tuple(np.bincount(kinds[list(domain.gpus)]).tolist())
    return kind_counts, tuple(sorted((_key(part, kinds) for part in domain.parts), key=repr))
