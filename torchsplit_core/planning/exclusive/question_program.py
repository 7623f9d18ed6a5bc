"""A question about whole slices on few GPUs, with hard co-locations or a loss survived, as a program in whole numbers.

Every GPU is counted by itself, so the program knows which models stand together on it, and what is left without it. A
question fixes what each model needs, and a slice that gives more counts as much as that: HiGHS then decides in a second
what it leaves open for minutes where it has to maximise the level.

| row | formula |
|---|---|
| layout[g] | Σ_l y[g,l] = 1 |
| pool[g,p] | Σ n[g,p,m,o,s] ≤ Σ_l slices[p,l]·y[g,l] |
| option[m] | Σ_o w[m,o] = 1 |
| reach[i,m,o,s] | Σ_gp min(rate / need, 1)·n[g,p,m,o,s] + b[i,m] + short[m] ≥ w[m,o] |
| price[i,m] | Σ π[m,p]·n[g,p,m,o,s] + c·b[i,m] + c·short[m] ≥ c, the least cost of level i for m at prices π |
| worth[g] | Σ π[m,p]·n[g,p,m,o,s] ≤ the dearest filling of g at these prices |
| stages[n] | n[g,p,m,o,s] ≤ X·Σ n[·,·,m,o,s + 1], the first stage after the last, if o has several |
| loss[g,m,o,s] | Σ_{other GPUs, p} min(rate / minimum, 1)·n[·,p,m,o,s] ≥ w[m,o], where a loss is to be survived |
| below[i] | Σ_m b[i,m] ≤ the models allowed below level i |
| together[g,k] | a[g,k] ≤ Σ n[g,·,m,·,·] for each model m of set k |
| absent[g,k] | n[g,p,m,o,s] ≤ X·a[g,k] |
| twins[g] | Σ_l l·y[g,l] ≥ Σ_l l·y[g+1,l] for equal GPUs |

n instances of a stage s of option o; b[i,m] model m is below level i; a[g,k] set k is on the GPU. Where a plan is
sought Σ short of the last level is minimised, so that a search that ends too early has a plan that lacks little; where
a proof is sought nothing is short. The prices are those of the patterns over fillings of GPUs
(patterns/gpu_fillings.py; without co-locations where these are too many): with them the linear relaxation is as strong
as theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from torchsplit_core.planning.exclusive.gpu_counts import ROUNDING, GpuCounts, GpuPlan, Instance
from torchsplit_core.planning.patterns.feasibility import FeasibilityProblem
from torchsplit_core.solver.highs import INF
from torchsplit_core.solver.row_program import RowProgram

REACH_SCALE = 1e3
"""Of the rows `reach`: what a plan lacks of a level just above it is then far more than HiGHS's tolerance."""


class QuestionProgram:
    """The program of one question.

    `short`: models may lack a part of the last level, and the sum of the parts is minimised. `priced`: with the rows
    `price` and `worth`, at the last prices.
    """

    def __init__(
        self,
        counts: GpuCounts,
        question: FeasibilityProblem,
        *,
        short: bool = False,
        priced: bool = False,
    ) -> None:
        self.fleet, self.rows = counts, RowProgram()
        self.is_blocked = False
        base, capacity = counts.base, counts.base.capacity
        self.layouts: list[dict[int, int]] = []
        for group in counts.gpus:
            columns = counts.columns[group]
            first = self.rows.add_columns([0.0] * len(columns), [1.0] * len(columns))
            self.layouts.append({column: first + place for place, column in enumerate(columns)})
            self.rows.add_row(1.0, 1.0, list(self.layouts[-1].values()), [1.0] * len(columns))
        first = self.rows.add_columns(
            [0.0] * len(counts.offers), [float(count) for _, _, count in counts.offers]
        )
        self.counts = {key: first + place for place, (key, _, _) in enumerate(counts.offers)}
        using: dict[tuple[int, int], list[int]] = {}
        for (gpu, _, _, _, pool), column in self.counts.items():
            using.setdefault((gpu, pool), []).append(column)
        for (gpu, pool), columns in using.items():
            offered = [
                (column, -float(capacity.slices[pool, number]))
                for number, column in self.layouts[gpu].items()
            ]
            self.rows.add_row(
                -INF,
                0.0,
                [*columns, *(c for c, _ in offered)],
                [*[1.0] * len(columns), *(n for _, n in offered)],
            )
        self._order_twins()
        self.options: dict[tuple[int, int], int] = {}
        for model, ways in enumerate(base.options):
            if len(ways.options) > 1:
                first = self.rows.add_columns([0.0] * len(ways.options), [1.0] * len(ways.options))
                self.options.update({(model, number): first + number for number in range(len(ways.options))})
                self.rows.add_row(
                    1.0, 1.0, range(first, first + len(ways.options)), [1.0] * len(ways.options)
                )
        for key, _, count in counts.offers:
            if key[1:3] in self.options:
                self.rows.add_row(-INF, 0.0, [self.counts[key], self.options[key[1:3]]], [1.0, -float(count)])
        self._keep_stages_together()
        self._reach(question, short=short, priced=priced)
        self._survive()
        if priced:
            self._sell()
        self._stand_together()

    def values_of(self, plan: GpuPlan) -> dict[int, float]:
        """The whole numbers for a plan, but who is below a level."""
        values = dict.fromkeys(self.counts.values(), 0.0)
        values |= {self.counts[key]: float(count) for key, count in plan.instances.items()}
        for gpu, column in enumerate(plan.columns):
            values |= {place: float(number == column) for number, place in self.layouts[gpu].items()}
        return values

    def hold(self, gpu: int, values: Mapping[int, float]) -> None:
        """Have these whole numbers on the GPU."""
        counts = [column for key, column in self.counts.items() if key[0] == gpu]
        for column in (*self.layouts[gpu].values(), *counts):
            self.rows.add_row(values[column], values[column], [column], [1.0])

    def read(self, values: np.ndarray) -> GpuPlan:
        """The plan of a solution."""
        columns = tuple(max(by_column, key=lambda c: values[by_column[c]]) for by_column in self.layouts)
        counts = {key: round(float(values[column])) for key, column in self.counts.items()}
        return GpuPlan(columns, {key: count for key, count in counts.items() if count})

    def _order_twins(self) -> None:
        gpus = self.fleet.gpus
        for gpu in range(1, len(gpus)):
            if gpus[gpu] == gpus[gpu - 1] and len(self.layouts[gpu]) > 1:
                before, after = (list(self.layouts[number].values()) for number in (gpu - 1, gpu))
                # Those of earlier columns last.
                weights = [float(place) for place in range(len(before))]
                self.rows.add_row(0.0, INF, [*before, *after], [*weights, *(-weight for weight in weights)])

    def _keep_stages_together(self) -> None:
        by_stage: dict[tuple[int, int, int], list[int]] = {}
        for key, column in self.counts.items():
            by_stage.setdefault(key[1:4], []).append(column)
        for (model, number, stage), columns in by_stage.items():
            stages = len(self.fleet.base.options[model].options[number].stages)
            if stages > 1:
                others = by_stage.get((model, number, (stage + 1) % stages), [])
                for column in columns:
                    self.rows.add_row(
                        -INF, 0.0, [column, *others], [1.0, *[-self.rows.upper[column]] * len(others)]
                    )

    def _reach(self, question: FeasibilityProblem, *, short: bool, priced: bool) -> None:
        base = self.fleet.base
        everybody = range(len(base.options))
        subsets = question.subsets or [tuple(everybody)] * len(question.allowed)
        terms: dict[tuple[int, int, int], list[tuple[int, float]]] = {}
        for key, rate, _ in self.fleet.offers:
            terms.setdefault(key[1:4], []).append((self.counts[key], rate))
        last = len(question.levels) - 1
        for number, (level, allowed, models) in enumerate(
            zip(question.levels, (0, *question.allowed), (everybody, *subsets), strict=True)
        ):
            below: list[int] = []
            for model in models:
                need = base.demand.required_rps(model, level)
                reachable = level <= base.demand.ceilings[model] * (1 + 1e-12) and bool(
                    base.options[model].options
                )
                if need <= 0:
                    continue
                relief: list[int] = []
                if allowed:
                    relief.append(self.rows.add_columns([0.0], [1.0]))
                    below.append(relief[0])
                elif not reachable:
                    self.is_blocked = True
                if not reachable:
                    if allowed:
                        self.rows.add_row(1.0, 1.0, relief, [1.0])
                    continue
                if short and number == last:
                    relief.append(self.rows.add_columns([1.0], [1.0]))
                    self.rows.continuous.add(relief[-1])
                self._reach_model(model, need, terms, relief)
                if priced:
                    self._pay(model, level, relief)
            if below:
                self.rows.add_row(-INF, float(allowed), below, [1.0] * len(below))

    def _survive(self) -> None:
        minima = self.fleet.loss_minima
        if not minima:
            return
        terms: dict[tuple[int, int, int], list[tuple[int, int, float]]] = {}
        for key, rate, _ in self.fleet.offers:
            terms.setdefault(key[1:4], []).append((key[0], self.counts[key], rate))
        for (model, number, _), offered in terms.items():
            least = minima[model]
            for lost in sorted({gpu for gpu, _, _ in offered}) if least > 0 else ():
                columns = [column for gpu, column, _ in offered if gpu != lost]
                values = [REACH_SCALE * min(1.0, rate / least) for gpu, _, rate in offered if gpu != lost]
                if (model, number) in self.options:
                    columns.append(self.options[model, number])
                    self.rows.add_row(0.0, INF, columns, [*values, -REACH_SCALE])
                else:
                    self.rows.add_row(REACH_SCALE, INF, columns, values)

    def _reach_model(
        self,
        model: int,
        need: float,
        terms: Mapping[tuple[int, int, int], Sequence[tuple[int, float]]],
        relief: Sequence[int],
    ) -> None:
        for number, option in enumerate(self.fleet.base.options[model].options):
            for stage in range(len(option.stages)):
                offered = terms.get((model, number, stage), ())
                columns = [*(column for column, _ in offered), *relief]
                values = [REACH_SCALE * min(1.0, rate / need) for _, rate in offered]
                values += [REACH_SCALE] * len(relief)
                if (model, number) in self.options:
                    self.rows.add_row(
                        0.0, INF, [*columns, self.options[model, number]], [*values, -REACH_SCALE]
                    )
                else:
                    self.rows.add_row(REACH_SCALE, INF, columns, values)

    def _pay(self, model: int, level: float, relief: Sequence[int]) -> None:
        """The model's slices are worth no less than the cheapest ones that reach the level."""
        search = self.fleet.priced
        cost = search.price_level(model, level, search.prices, keep=1).least
        if 0 < cost < INF:
            columns = {key: column for key, column in self.counts.items() if key[1] == model}
            worth = [self.fleet.price(key) / cost for key in columns]
            self.rows.add_row(
                1.0 - ROUNDING, INF, [*columns.values(), *relief], [*worth, *[1.0] * len(relief)]
            )

    def _sell(self) -> None:
        """What stands on a GPU is worth no more than it is at its dearest."""
        search = self.fleet.priced
        worth = search.capacity.values(search.prices)
        by_gpu: dict[int, list[Instance]] = {}
        for key in self.counts:
            by_gpu.setdefault(key[0], []).append(key)
        for gpu, keys in by_gpu.items():
            most = float(worth[search.capacity.group_of == self.fleet.gpus[gpu]].max())
            if most > 0:
                values = [self.fleet.price(key) / most for key in keys]
                self.rows.add_row(-INF, 1.0 + ROUNDING, [self.counts[key] for key in keys], values)

    def _stand_together(self) -> None:
        by_model: dict[tuple[int, int], list[int]] = {}
        for key, column in self.counts.items():
            if key[1] in self.fleet.members:
                by_model.setdefault((key[0], key[1]), []).append(column)
        for gpu in range(len(self.fleet.gpus)):
            for models in self.fleet.sets:
                present = self.rows.add_columns([0.0], [1.0])
                for model in models:
                    columns = by_model.get((gpu, model), [])
                    self.rows.add_row(0.0, INF, [*columns, present], [*[1.0] * len(columns), -1.0])
                    for column in columns:
                        self.rows.add_row(-INF, 0.0, [column, present], [1.0, -self.rows.upper[column]])
