"""What routed co-locations send in any plan, from the contract's words alone."""

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
from scipy.optimize import linprog

from torchsplit_core.values import PlanRequest, point_type

Rates = Sequence[dict[str, float]]
"""Of every GPU the requests/s of each name that a co-location may have."""


def sent(request: PlanRequest, rates: Rates) -> float:
    """Σ bytes · max(0, R − Σ over GPUs of the lesser of both)."""
    total = 0.0
    for pair in request.colocations:
        for first, second in pairwise(pair.models) if pair.mode == "routed" else ():
            kept = sum(min(rate.get(first, 0.0), rate.get(second, 0.0)) for rate in rates)
            total += pair.bytes_per_request * max(0.0, demand(request, first, second) - kept)
    return total


def demand(request: PlanRequest, *names: str) -> float:
    """R; no model here has "/" in its name."""
    demands = {model.name: model.demand_rps for model in request.models}
    return min(demands[name.partition("/")[0]] for name in names)


def best_routed_shares(request: PlanRequest) -> tuple[tuple[float, ...], float]:
    """The leximin-best vector and the fewest bytes/s, by linear programs over every choice of layouts.

    Of requests without memory, limits and cut models: every model may have a share of every slice.
    """
    best: tuple[tuple[float, ...], float] | None = None
    for layouts in product(*(entry.layouts or (("",),) for entry in request.gpus)):
        found = _Shares(request, layouts).best()
        if best is None or _better(found, best):
            best = found
    assert best is not None
    return best


def _better(new: tuple[tuple[float, ...], float], old: tuple[tuple[float, ...], float]) -> bool:
    for mine, other in zip(new[0], old[0], strict=True):
        if abs(mine - other) > 1e-7 * max(abs(mine), abs(other)):
            return mine > other
    return new[1] < old[1]


class _Shares:
    """Columns: shares by (slice, model), T by model, u by model, (t, d by model) by level, then κ by (pair, GPU), φ."""

    def __init__(self, request: PlanRequest, layouts: Sequence[Sequence[str]]) -> None:
        self.request, self.models, self.gpus = request, len(request.models), len(layouts)
        self.slices = [(gpu, profile) for gpu, layout in enumerate(layouts) for profile in layout]
        (self.pair,) = request.colocations
        self.steps = list(pairwise(int(name[1:]) for name in self.pair.models))
        self.levels = self.models if request.objective.kind == "leximin" else 1
        self.after = len(self.slices) * self.models
        self.flow = self.after + 2 * self.models + self.levels * (1 + self.models)
        self.width = self.flow + len(self.steps) * (self.gpus + 1)
        self.rows: list[np.ndarray] = []
        self.right: list[float] = []

    def row(self, right: float, **columns: float) -> None:
        made = np.zeros(self.width)
        for column, factor in columns.items():
            made[int(column[1:])] += factor
        self.rows.append(made)
        self.right.append(right)

    def rate(self, slot: int, m: int) -> float:
        gpu, profile = self.slices[slot]
        kind = point_type(self.request.gpus[gpu].type)
        points = self.request.models[m].variants[0].stages[0].points
        return max(
            (p.throughput_rps for p in points if (p.gpu_type, p.profile) == (kind, profile)), default=0.0
        )

    def best(self) -> tuple[tuple[float, ...], float]:
        high = np.full(self.width, np.inf)
        for slot in range(len(self.slices)):
            self.row(1.0, **{f"c{slot * self.models + m}": 1.0 for m in range(self.models)})
        for m, model in enumerate(self.request.models):
            given = {f"c{s * self.models + m}": -self.rate(s, m) for s in range(len(self.slices))}
            self.row(0.0, **{f"c{self.after + m}": 1.0}, **given)
            counted = self.after + self.models + m
            self.row(0.0, **{f"c{counted}": model.weight * model.demand_rps, f"c{self.after + m}": -1.0})
            if model.cap_at_demand:
                high[counted] = 1.0 / model.weight
            for level in range(self.levels):
                start = self.after + 2 * self.models + level * (1 + self.models)
                self.row(0.0, **{f"c{start}": 1.0, f"c{start + 1 + m}": -1.0, f"c{counted}": -1.0})
        for f, step in enumerate(self.steps):
            place = self.flow + f * (self.gpus + 1)
            least = demand(self.request, *(f"m{m}" for m in step))
            self.row(-least, **{f"c{place + g}": -1.0 for g in range(self.gpus + 1)})
            for g, m in product(range(self.gpus), step):
                there = {
                    f"c{s * self.models + m}": -self.rate(s, m)
                    for s, (gpu, _) in enumerate(self.slices)
                    if gpu == g
                }
                self.row(0.0, **{f"c{place + g}": 1.0}, **there)
        sums = [0.0]
        for level in range(self.levels):
            theta = np.zeros(self.width)
            start = self.after + 2 * self.models + level * (1 + self.models)
            theta[start], theta[start + 1 : start + 1 + self.models] = level + 1, -1.0
            sums.append(-self.solved(-theta, high))
            self.rows.append(-theta)
            self.right.append(-sums[-1] + 1e-9)
        cost = np.zeros(self.width)
        cost[[self.flow + f * (self.gpus + 1) + self.gpus for f in range(len(self.steps))]] = 1.0
        vector = tuple(after - before for before, after in pairwise(sums))
        return vector, self.pair.bytes_per_request * self.solved(cost, high)

    def solved(self, cost: np.ndarray, high: np.ndarray) -> float:
        low = np.zeros(self.width)
        # A cheap model gains a thousandfold what a dear one gives up: floors hold to more than the usual 1e-7.
        exact = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
        bounds = np.column_stack([low, high])
        answer = linprog(cost, A_ub=np.array(self.rows), b_ub=self.right, bounds=bounds, options=exact)
        assert answer.status == 0, answer.message
        return float(answer.fun)
