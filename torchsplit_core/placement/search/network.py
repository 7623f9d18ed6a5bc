"""Fast links at a threshold: components, and symmetry classes of GPUs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Component:
    """GPUs joined by fast links in either direction. complete: every one is linked with every other.

    gpus: ascending. links: (gpus, gpus) fast or not, the diagonal true.
    """

    gpus: np.ndarray
    links: np.ndarray
    complete: bool


@dataclass(frozen=True)
class GpuClasses:
    """Symmetry classes of a component: exchangeable GPUs, of one kind and with equal links.

    members: GPUs ascending, one tuple a class. kinds: of each class. links: (classes, classes); the diagonal: whether
    the members of a class are linked with each other.
    """

    members: tuple[tuple[int, ...], ...]
    kinds: tuple[int, ...]
    links: np.ndarray


def components(links: np.ndarray, usable: np.ndarray, threshold: float) -> list[Component]:
    """The components of the usable GPUs under links of at least `threshold`, by their first GPU."""
    if not len(usable):
        return []
    fast = links[np.ix_(usable, usable)] >= threshold
    np.fill_diagonal(fast, True)
    if fast.all():
        return [Component(usable, fast, True)]
    joined = fast | fast.T
    left = np.ones(len(usable), dtype=bool)
    parts = []
    while left.any():
        inside = np.zeros(len(usable), dtype=bool)
        edge = inside.copy()
        edge[left.argmax()] = True
        while edge.any():
            inside |= edge
            edge = joined[edge].any(axis=0) & ~inside
        left &= ~inside
        block = fast[np.ix_(inside, inside)]
        parts.append(Component(usable[inside], block, bool(block.all())))
    return parts


def gpu_classes(component: Component, kinds: tuple[int, ...]) -> GpuClasses:
    """Merge exchangeable GPUs. GPUs i and j are exchangeable if swapping them leaves the graph unchanged: rows and
    columns are equal with the diagonal true (then they are linked with each other) or with it false (then not)."""
    size = len(component.gpus)
    owner = [-1] * size
    groups: list[list[int]] = []
    for linked in (True, False):
        fast = component.links.copy()
        np.fill_diagonal(fast, linked)
        rows, columns = np.packbits(fast, axis=1), np.packbits(fast.T, axis=1)
        alike: dict[tuple[int, bytes, bytes], list[int]] = {}
        for index in range(size):
            key = (kinds[component.gpus[index]], rows[index].tobytes(), columns[index].tobytes())
            alike.setdefault(key, []).append(index)
        for group in alike.values():
            if len(group) > 1:
                for index in group:
                    owner[index] = len(groups)
                groups.append(group)
    groups += [[index] for index in range(size) if owner[index] < 0]
    groups.sort()
    first = [group[0] for group in groups]
    links = component.links[np.ix_(first, first)].copy()
    for number, group in enumerate(groups):
        links[number, number] = len(group) > 1 and component.links[group[0], group[1]]
    members = tuple(tuple(component.gpus[group].tolist()) for group in groups)
    return GpuClasses(members, tuple(kinds[group[0]] for group in members), links)
