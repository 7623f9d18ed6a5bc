"""Which GPU of one plan is which of the other: GPUs of one type can be renumbered at no cost.

The pairs minimise first the slices that change (added and removed), then the changed tenants on slices that stay, then
the changed ids. Both counts are sizes of symmetric differences, hence metrics, and pairing equal GPUs first loses
nothing. The rest of a type is an assignment problem, solved exactly up to EXACT GPUs; above, each GPU in turn takes
the nearest one left.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from torchsplit_core.values import PlannedGpu, PlannedSlice, Tenant

EXACT = 1024
"""GPUs of a type, without paired equal ones, up to which the assignment is solved exactly."""

TENANT_WEIGHT = 2 * EXACT
"""Weight of a slice that stays with other tenants: more than all ids together, which count 1 each."""

SLICE_WEIGHT = TENANT_WEIGHT * 16 * EXACT
"""Weight of a slice that changes: more than all tenants, since two GPUs have at most 16 slices together."""

GpuPair = tuple[PlannedGpu | None, PlannedGpu | None]
TenantKey = tuple[str, str, str, int, int]


def tenant_key(tenant: Tenant) -> TenantKey:
    """Identity of a running tenant; another share or rate needs no restart."""
    return (tenant.model, tenant.variant, tenant.stage, tenant.batch_size, tenant.processes)


def match_gpus(before: Sequence[PlannedGpu], after: Sequence[PlannedGpu]) -> tuple[GpuPair, ...]:
    """Every GPU of both plans once, with its partner or None, in the order of `before`, then of `after`."""
    pairs: list[tuple[int | None, int | None]] = []
    for kind in dict.fromkeys(gpu.type for gpu in (*before, *after)):
        left = [number for number, gpu in enumerate(before) if gpu.type == kind]
        right = [number for number, gpu in enumerate(after) if gpu.type == kind]
        equal = _pair_equal(before, after, left, right)
        taken = {first for first, _ in equal}, {second for _, second in equal}
        left = [number for number in left if number not in taken[0]]
        right = [number for number in right if number not in taken[1]]
        matched = equal + _pair_nearest(before, after, left, right)
        partners = {first for first, _ in matched}, {second for _, second in matched}
        pairs += matched
        pairs += [(number, None) for number in left if number not in partners[0]]
        pairs += [(None, number) for number in right if number not in partners[1]]
    pairs.sort(key=lambda pair: (pair[0] is None, pair[0] if pair[0] is not None else pair[1]))
    return tuple(
        (None if first is None else before[first], None if second is None else after[second])
        for first, second in pairs
    )


def _slice_key(item: PlannedSlice) -> Hashable:
    return (item.profile, item.start, tuple(sorted(map(tenant_key, item.tenants))))


def _pair_equal(
    before: Sequence[PlannedGpu], after: Sequence[PlannedGpu], left: Sequence[int], right: Sequence[int]
) -> list[tuple[int, int]]:
    """Pairs of GPUs with the same slices and tenants, those with the same id first."""
    waiting: dict[Hashable, dict[str, int]] = {}
    for number in right:
        content = frozenset(map(_slice_key, after[number].slices))
        waiting.setdefault(content, {})[after[number].id] = number
    contents = {number: frozenset(map(_slice_key, before[number].slices)) for number in left}
    pairs = []
    for number in left:
        partner = waiting.get(contents[number], {}).pop(before[number].id, None)
        if partner is not None:
            pairs.append((number, partner))
    paired = {first for first, _ in pairs}
    for number in left:
        others = waiting.get(contents[number])
        if number not in paired and others:
            pairs.append((number, others.pop(next(iter(others)))))
    return pairs


def _pair_nearest(
    before: Sequence[PlannedGpu], after: Sequence[PlannedGpu], left: Sequence[int], right: Sequence[int]
) -> list[tuple[int, int]]:
    if not left or not right:
        return []
    column_of: dict[Hashable, int] = {}
    for gpu in (*(before[n] for n in left), *(after[n] for n in right)):
        for item in gpu.slices:
            column_of.setdefault((item.profile, item.start), len(column_of))
            column_of.setdefault(_slice_key(item), len(column_of))
    weights = [SLICE_WEIGHT if len(key) == 2 else TENANT_WEIGHT for key in column_of]  # type: ignore[arg-type]
    weight = np.array(weights, dtype=np.float64)
    before_features, after_features = (
        _features([gpus[n] for n in numbers], column_of) for gpus, numbers in ((before, left), (after, right))
    )
    names = np.array([after[n].id for n in right], dtype=object)

    def distance(rows: slice) -> NDArray[np.float64]:
        """The weighted symmetric difference, plus 1 if the ids differ: (rows, right)."""
        features = before_features[rows]
        apart = (
            (features @ weight)[:, None]
            + (after_features @ weight)[None, :]
            - 2 * (features * weight) @ after_features.T
        )
        ids = np.array([before[n].id for n in left[rows]], dtype=object)
        return np.asarray(apart + (ids[:, None] != names[None, :]), dtype=np.float64)

    if max(len(left), len(right)) <= EXACT:
        # A GPU without a partner loses or gains all it has; pairing saves that.
        unpaired = (before_features @ weight)[:, None] + (after_features @ weight)[None, :]
        rows, columns = linear_sum_assignment(distance(slice(None)) - unpaired)
        return [(left[row], right[column]) for row, column in zip(rows, columns, strict=True)]
    free = np.ones(len(right), dtype=bool)
    pairs = []
    for row, number in enumerate(left):
        if not free.any():
            break
        column = int(np.where(free, distance(slice(row, row + 1))[0], np.inf).argmin())
        free[column] = False
        pairs.append((number, right[column]))
    return pairs


def _features(gpus: Sequence[PlannedGpu], column_of: dict[Hashable, int]) -> NDArray[np.float64]:
    """(GPUs, features): which (profile, start) and which (profile, start, tenants) a GPU has."""
    features = np.zeros((len(gpus), max(1, len(column_of))))
    for row, gpu in enumerate(gpus):
        for item in gpu.slices:
            features[row, column_of[item.profile, item.start]] = 1
            features[row, column_of[_slice_key(item)]] = 1
    return features[:, : len(column_of)]
