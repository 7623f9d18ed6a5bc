"""Tenancies counted by pool: a bound that knows least shares and memory, and the tenants that reach it.

Slices of a pool are not told apart. Of each use u (a point of a stage on a pool) n[u] tenancies have the share x[u]
together. A tenancy under a latency limit needs a least share, so a model cannot have a third of a slice at the
throughput of a whole one, as it can with pooled shares. An option o is a case. All tenancies of a model need the share
that its longest latency in use asks for: to find tenants, not for the bound, an option is a case with its longest
latency, of those given.

| row | formula |
|---|---|
| present[u] | x[u] ≤ n[u] |
| least[u] | x[u] ≥ least(u) · n[u] |
| share[p] | Σ_u∈p x[u] ≤ N[p] = Σ_c slices[p,c]·y[c]; n[u] in place of x[u] where the memory of u is unknown |
| memory[p] | Σ_u∈p memory(u)·n[u] ≤ size(p) · N[p] |
| tenants[p] | Σ_u∈p n[u] ≤ the most tenants · N[p] |
| packing[p,k] | Σ_u∈p f_k(part(u))·n[u] ≤ N[p], part(u) the least share, or the memory over the slice's |
| fleet[g] | Σ_{c∈g} y[c] ≤ GPUs[g] |
| option[u], one[m] | n[u] ≤ X·w[o], Σ_o∈m w[o] ≤ 1 where a model has several options |
| stage[o,s] | v[o] ≤ Σ_u∈(o,s) rate(u)/unit(m)·x[u] |
| level[m] | Σ_o∈m v[o] ≥ t |
| minimum[m] | Σ_o∈m v[o] ≥ minimum(m)/unit(m) |

f_k is a dual feasible function: parts that fit into one slice have f_k of at most 1 together (S. P. Fekete and
J. Schepers, New classes of fast lower bounds for bin packing problems, 2001). What is left out is which tenants stand
together: the concrete program finds it for these layouts and tenants.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchsplit_core.planning.fractional.restricted_master import add_layout_columns, slices_per_column
from torchsplit_core.planning.outcome.instances import choices_by_point, point_key
from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.planning.request.objective import goal_of, has_tiers, requires_resilience, unit_rps
from torchsplit_core.solver.highs import INF, ProgramRejected
from torchsplit_core.solver.row_program import RowProgram, RowSolution
from torchsplit_core.values import PlannedGpu
from torchsplit_core.values.status import ProgramStatus

MAX_USES = 6000
"""Uses above which the program is not solved."""

PACKING_CLASSES = (1, 2, 3, 4)
"""k of the packing rows."""

LEVEL_SCALE = 1000.0
"""The level at which pooled shares serve the worst-served model in the program: HiGHS keeps rows to 10⁻⁶."""


@dataclass(frozen=True)
class TenancyCounts:
    """GPUs by (group, layout), and the choices (indices in the problem) that have a tenancy.

    `bound` is of the objective's first level (or sum, or cost); `status` says whether `value` reaches it.
    """

    status: ProgramStatus
    layouts: dict[tuple[int, int], int]
    tenants: frozenset[int]
    value: float
    bound: float


@dataclass(frozen=True)
class PlannedCounts:
    """A plan as counts: GPUs by (group, layout), tenancies by choice (its index)."""

    layouts: Mapping[tuple[int, int], int]
    tenancies: Mapping[int, int]


def count_tenancies(
    problem: Problem,
    known_bound: float,
    seconds: float,
    longest: Longest | None = None,
    start: PlannedCounts | None = None,
) -> TenancyCounts | None:
    """The best counts found in `seconds`; None if the program does not apply, is too large, or has none in time.

    `known_bound` is a bound of the objective, which sets the scale of levels. With `longest` the cases given have no
    other longest latencies than those, and `bound` bounds nothing else. `start` is a plan to begin with.
    """
    if not counts_all_limits(problem) or not math.isfinite(known_bound):
        return None
    if not problem.choices or known_bound <= 0:
        return None
    program = _CountProgram(problem, known_bound, longest or {})
    if len(program.uses) > MAX_USES:
        return None
    try:
        solution = program.rows.solve(seconds, start=None if start is None else program.values_of(start))
    except ProgramRejected:
        return None
    return program.read(solution) if len(solution.values) else None


def counts_all_limits(problem: Problem) -> bool:
    """Whether the request has no penalties, no survival and no tiers, which counts do not know."""
    return counts_all_levels(problem) and not requires_resilience(problem.request)


def counts_all_levels(problem: Problem) -> bool:
    """The same but for survival."""
    penalised = problem.request.objective.memory_violation_penalty is not None
    return not (penalised or has_tiers(problem.request))


def counts_of(problem: Problem, gpus: Sequence[PlannedGpu]) -> PlannedCounts | None:
    """The counts of a plan; None if a GPU's slices are in none of the problem's layouts."""
    group_of = {gpu: g for g, group in enumerate(problem.groups) for gpu in group.gpu_ids}
    choice_of = choices_by_point(problem)
    layouts: Counter[tuple[int, int]] = Counter()
    tenancies: Counter[int] = Counter()
    for gpu in gpus:
        g = group_of[gpu.id]
        needed = Counter(item.profile for item in gpu.slices if item.tenants)
        if not needed:
            continue
        fitting = [
            number
            for number, layout in enumerate(problem.groups[g].layouts)
            if not needed - Counter(layout.usable_counts)
        ]
        if not fitting:
            return None
        layouts[g, fitting[0]] += 1
        tenancies.update(
            choice_of[g, point_key(gpu.type, item.profile, tenant)]
            for item in gpu.slices
            for tenant in item.tenants
        )
    return PlannedCounts(layouts, tenancies)


@dataclass(frozen=True, slots=True)
class _Use:
    """A choice (its index in the problem) of an option, and the least share of its tenancies."""

    choice: int
    option: int
    least: float


@dataclass(frozen=True, slots=True)
class _Option:
    """A case, with its longest latency as a share of its budget; None: any, each use needs its own least share."""

    case: int
    longest: float | None = None


Longest = Mapping[int, frozenset[float]]
"""By case the longest latencies that are tried, as shares of its budget."""


def _list_options(problem: Problem, longest: Longest) -> tuple[list[_Option], list[_Use]]:
    """The options of all cases, and their uses without those that another one matches in everything."""
    by_case: dict[int, list[int]] = {}
    for number, choice in enumerate(problem.choices):
        by_case.setdefault(choice.case, []).append(number)
    options: list[_Option] = []
    uses: list[_Use] = []
    for case, choices in by_case.items():
        parts = {number: latency_part(problem, problem.choices[number]) for number in choices}
        for option in [_Option(case, part) for part in sorted(longest.get(case, ()))] or [_Option(case)]:
            offered = [
                _Use(number, len(options), max(option.longest or 0.0, parts[number]))
                for number in choices
                if option.longest is None or parts[number] <= option.longest
            ]
            uses += _undominated(problem, offered)
            options.append(option)
    return options, uses


def latency_part(problem: Problem, choice: Choice) -> float:
    """The least share of a choice by its own latency."""
    case = problem.cases[choice.case]
    if not case.has_latency_levels or case.budget_ms is None:
        return 0.0
    return choice.point.latency_ms / case.budget_ms


def _undominated(problem: Problem, uses: Iterable[_Use]) -> list[_Use]:
    by_place: dict[tuple[int, int, str], list[_Use]] = {}
    for use in uses:
        choice = problem.choices[use.choice]
        by_place.setdefault((choice.stage, choice.group, choice.profile), []).append(use)
    undominated: list[_Use] = []
    for offered in by_place.values():
        best: list[tuple[float, float]] = []
        ranked = sorted(
            offered, key=lambda use: (-problem.choices[use.choice].rate_rps, use.least, _memory(problem, use))
        )
        for use in ranked:
            figures = use.least, _memory(problem, use)
            if not any(least <= figures[0] and memory <= figures[1] for least, memory in best):
                best.append(figures)
                undominated.append(use)
    return undominated


def _memory(problem: Problem, use: _Use) -> float:
    choice = problem.choices[use.choice]
    return INF if choice.needs_own_slice else choice.memory_gib


def longest_latencies(problem: Problem, tenants: Iterable[int]) -> Longest:
    """By case of one stage under a latency limit, the latencies of these choices, as shares of its budget."""
    by_case: dict[int, set[float]] = {}
    for number in tenants:
        choice = problem.choices[number]
        case = problem.cases[choice.case]
        if case.stages == 1 and case.has_latency_levels:
            by_case.setdefault(choice.case, set()).add(latency_part(problem, choice))
    return {case: frozenset(parts) for case, parts in by_case.items()}


class _CountProgram:
    """The program, with the columns of its variables."""

    def __init__(self, problem: Problem, known_bound: float, longest: Longest) -> None:
        self.problem, self.goal = problem, goal_of(problem.request)
        self.options, self.uses = _list_options(problem, longest)
        self.rows, self.chosen = RowProgram(), dict[int, int]()
        self.scale = LEVEL_SCALE / known_bound
        count = len(self.uses)
        self.shares = self.rows.add_columns([0.0] * count, [INF] * count)
        self.rows.continuous.update(range(self.shares, self.shares + count))
        self.counts = self.rows.add_columns([0.0] * count, [INF] * count)
        self.layouts = add_layout_columns(
            self.rows, problem, INF, 1.0 / self.scale, minimised=self.goal.by_cost
        )
        by_pool: dict[tuple[int, str], list[int]] = {}
        for number, use in enumerate(self.uses):
            choice = problem.choices[use.choice]
            by_pool.setdefault((choice.group, choice.profile), []).append(number)
            pair = [self.shares + number, self.counts + number]
            self.rows.add_row(-INF, 0.0, pair, [1.0, -1.0])
            if use.least > 0:
                self.rows.add_row(0.0, INF, pair, [1.0, -use.least])
        for pool, numbers in by_pool.items():
            self._add_pool(pool, numbers)
        self._add_models()

    def read(self, solution: RowSolution) -> TenancyCounts:
        """The counts of a solution."""
        values = solution.values
        layouts = {key: round(values[column]) for key, column in self.layouts.items()}
        sign = 1.0 if self.goal.minimised else -1.0
        cost = sum(part * value for part, value in zip(self.rows.cost, values.tolist(), strict=True))
        return TenancyCounts(
            solution.status,
            {key: count for key, count in layouts.items() if count},
            frozenset(use.choice for u, use in enumerate(self.uses) if values[self.counts + u] > 0.5),
            sign * cost / self.scale,
            sign * solution.bound / self.scale,
        )

    def values_of(self, counts: PlannedCounts) -> dict[int, float]:
        """The whole numbers of the program for these counts; a use that was left out is replaced by a better one."""
        choices = self.problem.choices
        values = {column: float(counts.layouts.get(key, 0)) for key, column in self.layouts.items()}
        values.update({self.counts + u: 0.0 for u in range(len(self.uses))})
        longest = longest_latencies(self.problem, counts.tenancies)
        chosen = {
            number
            for number, option in enumerate(self.options)
            if option.longest is None or option.longest == max(longest.get(option.case, {-1.0}))
        }
        for index, count in counts.tenancies.items():
            wanted = choices[index]
            for u, use in enumerate(self.uses):
                choice = choices[use.choice]
                if (
                    use.option in chosen
                    and (choice.case, choice.stage) == (wanted.case, wanted.stage)
                    and (choice.group, choice.profile) == (wanted.group, wanted.profile)
                    and choice.rate_rps >= wanted.rate_rps
                    and _memory(self.problem, use) <= (INF if wanted.needs_own_slice else wanted.memory_gib)
                ):
                    values[self.counts + u] += float(count)
                    break
        for option, column in self.chosen.items():
            values[column] = float(option in chosen)
        return values

    def _add_pool(self, pool: tuple[int, str], numbers: list[int]) -> None:
        size = self.problem.slice_memory_gib(*pool)
        supply = slices_per_column(self.problem, pool, self.layouts).items()
        alone = {u: self.problem.choices[self.uses[u].choice].needs_own_slice for u in numbers}
        memory = {u: self.problem.choices[self.uses[u].choice].memory_gib for u in numbers}

        def at_most(limit: float, terms: Iterable[tuple[int, float]]) -> None:
            parts = [(column, part) for column, part in terms if part > 0]
            if parts:
                parts += [(column, -limit * count) for column, count in supply if count]
                self.rows.add_row(-INF, 0.0, [column for column, _ in parts], [part for _, part in parts])

        at_most(1.0, [((self.counts if alone[u] else self.shares) + u, 1.0) for u in numbers])
        if size < INF:
            at_most(size, [(self.counts + u, size if alone[u] else memory[u]) for u in numbers])
        most_tenants = self.problem.request.max_tenants_per_slice
        if most_tenants is not None:
            at_most(float(most_tenants), [(self.counts + u, 1.0) for u in numbers])
        least = {u: self.uses[u].least for u in numbers}
        for part_of in (least, {u: memory[u] / size for u in numbers}):
            parts = {u: 1.0 if alone[u] else min(1.0, part_of[u]) for u in numbers}
            for k in PACKING_CLASSES:
                at_most(1.0, [(self.counts + u, dual_feasible(k, part)) for u, part in parts.items()])

    def _add_models(self) -> None:
        specs = self.problem.request.models
        level = self.rows.add_columns([-1.0 if self.goal.fair else 0.0], [INF])
        self.rows.continuous.add(level)
        by_stage: dict[tuple[int, int], list[int]] = {}
        for number, use in enumerate(self.uses):
            by_stage.setdefault((use.option, self.problem.choices[use.choice].stage), []).append(number)
        by_model: dict[int, list[int]] = {}
        for number, option in enumerate(self.options):
            by_model.setdefault(self.problem.cases[option.case].model, []).append(number)
        for model, spec in enumerate(specs):
            unit = (unit_rps(spec) if self.goal.fair else 1.0) / self.scale
            options = by_model.get(model, [])
            columns = [self._add_option(option, unit, self.goal.gain(spec), by_stage) for option in options]
            if len(options) > 1:
                self._choose_option(options, by_stage)
            ones = [1.0] * len(columns)
            cap = spec.demand_rps / unit if spec.cap_at_demand else INF
            if spec.min_throughput_rps:
                self.rows.add_row(spec.min_throughput_rps / unit, INF, columns, ones)
            if self.goal.fair:
                self.rows.add_row(0.0, INF, [*columns, level], [*ones, -1.0])
                self.rows.upper[level] = min(self.rows.upper[level], cap)
            elif cap < INF and columns:
                self.rows.add_row(-INF, cap, columns, ones)

    def _add_option(
        self, option: int, unit: float, gain: float, by_stage: dict[tuple[int, int], list[int]]
    ) -> int:
        """The column of an option's throughput, in `unit` requests/s."""
        column = self.rows.add_columns([-gain], [INF])
        self.rows.continuous.add(column)
        for stage in range(self.problem.cases[self.options[option].case].stages):
            uses = by_stage.get((option, stage), [])
            rates = [self.problem.choices[self.uses[u].choice].rate_rps / unit for u in uses]
            self.rows.add_row(0.0, INF, [*(self.shares + u for u in uses), column], [*rates, -1.0])
        return column

    def _choose_option(self, options: list[int], by_stage: dict[tuple[int, int], list[int]]) -> None:
        chosen = self.rows.add_columns([0.0] * len(options), [1.0] * len(options))
        self.rows.add_row(-INF, 1.0, range(chosen, chosen + len(options)), [1.0] * len(options))
        self.chosen.update({option: chosen + position for position, option in enumerate(options)})
        for position, option in enumerate(options):
            for stage in range(self.problem.cases[self.options[option].case].stages):
                for use in by_stage.get((option, stage), []):
                    choice = self.problem.choices[self.uses[use].choice]
                    group = self.problem.groups[choice.group]
                    most = max(layout.usable_counts.get(choice.profile, 0) for layout in group.layouts)
                    pair = [self.counts + use, chosen + position]
                    self.rows.add_row(-INF, 0.0, pair, [1.0, -float(most * len(group.gpu_ids))])


def dual_feasible(k: int, part: float) -> float:
    """f_k of a part of a slice: the part itself if (k + 1) · part is whole, else ⌊(k + 1) · part⌋ / k."""
    scaled = (k + 1) * part
    return part if abs(scaled - round(scaled)) < 1e-9 else math.floor(scaled) / k
