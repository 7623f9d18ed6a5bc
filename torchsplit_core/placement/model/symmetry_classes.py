"""Classes of GPUs with equal links, and groups of such classes that can be exchanged as a whole.

Exchanging two GPUs of one kind with equal links to and from all others, and to each other, leaves the instance
unchanged. Such exchanges compose, so they form classes whose GPUs can stand for each other. Two classes are
exchangeable if the same holds for them as wholes, as for equal nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance

MOST_VECTORS = 100_000
"""Most vectors of how many GPUs to take of each class for a search over all of them. Chosen, not measured."""


@dataclass(frozen=True)
class SymmetryClasses:
    """members: GPUs ascending, one tuple a class, classes by group. kinds: of each class. group: of each class.

    links: (classes, classes), the diagonal the link inside a class (0 where it has one member).
    """

    members: tuple[tuple[int, ...], ...]
    kinds: tuple[int, ...]
    group: tuple[int, ...]
    links: np.ndarray


def symmetry_classes(instance: ProblemInstance, most: int) -> SymmetryClasses | None:
    """The classes; None if there are more than `most` vectors of how many GPUs to take of each."""
    groups: list[list[int]] = []
    vectors = 1
    for gpu in range(len(instance.kinds)):
        for group in groups:
            if are_interchangeable(instance.links, instance.kinds, group[0], gpu):
                vectors = vectors // (len(group) + 1) * (len(group) + 2)
                group.append(gpu)
                break
        else:
            vectors *= 2
            groups.append([gpu])
        if vectors > most:
            return None
    first = [group[0] for group in groups]
    links = instance.links[np.ix_(first, first)].copy()
    inside = [float(instance.links[group[0], group[1]]) if len(group) > 1 else 0.0 for group in groups]
    np.fill_diagonal(links, inside)
    sort = [(instance.kinds[group[0]], len(group), link) for group, link in zip(groups, inside, strict=True)]
    numbers = {signature: number for number, signature in enumerate(dict.fromkeys(sort))}
    sort_of = tuple(numbers[signature] for signature in sort)
    sets: list[list[int]] = []
    for index in range(len(groups)):
        home = next(
            (members for members in sets if are_interchangeable(links, sort_of, members[0], index)), None
        )
        if home is None:
            sets.append([index])
        else:
            home.append(index)
    order = [index for members in sets for index in members]
    return SymmetryClasses(
        tuple(tuple(groups[index]) for index in order),
        tuple(instance.kinds[groups[index][0]] for index in order),
        tuple(number for number, members in enumerate(sets) for _ in members),
        links[np.ix_(order, order)],
    )


def are_interchangeable(links: np.ndarray, sorts: Sequence[object], first: int, second: int) -> bool:
    """Whether exchanging the two, which are of one sort, leaves all links unchanged."""
    if sorts[first] != sorts[second] or links[first, second] != links[second, first]:
        return False
    rest = np.ones(len(links), dtype=bool)
    rest[[first, second]] = False
    rows = np.array_equal(links[first, rest], links[second, rest])
    return rows and np.array_equal(links[rest, first], links[rest, second])
