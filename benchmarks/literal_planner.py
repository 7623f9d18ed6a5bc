"""The published formulation taken at its word, as the reference of the planner's speed.

Exclusive max_min, GPU by GPU. Indices: m model, n GPU (node), l layout, c whole profile name.

    y[n,l] ∈ {0,1}     one layout a GPU, of every maximal legal one:  Σ_l y[n,l] = 1
    x[m,n,c] ∈ ℕ       slices of profile c on GPU n given to model m
    a[m,n] ∈ {0,1}     placement indicator                            x[m,n,c] ≤ M · a[m,n]
    capacity           Σ_m x[m,n,c] ≤ Σ_l count_c(l) · y[n,l]
    throughput         T_m = Σ_n,c x[m,n,c] · throughput[m][c],       Z ≤ T_m / (weight · demand)
    objective          maximise Z

Kept fair: M is the most slices of c that a layout of the GPU has, throughput[m][c] is that of the
model's best point on the profile within its limits, a profile without a point has no x, and it runs
through the planner's own `solve` (same HiGHS, tolerances and one thread). Nothing is added that the
text has not: no aggregation of equal GPUs, no dominance, no order among twins.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import Any

import pyomo.environ as pyo

from benchmarks.planner_instances import instance
from benchmarks.planner_report import gap_text, heading, parse_size, row, same, value_text
from torchsplit_core.hardware import gpu_type, maximal_multisets
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.solver.pyomo_model import ModelSolution, solve
from torchsplit_core.values import PlanModel, PlanRequest

ROW_TOLERANCE = 1e-6
"""HiGHS's default feasibility tolerance: its Z may exceed the value of the rounded solution by this much."""


@dataclass(frozen=True)
class Literal:
    """Outcome of the literal formulation. `value` is Z of the rounded solution, `gap` is HiGHS's."""

    status: str
    value: float | None
    bound: float | None
    gap: float | None
    build_s: float
    solve_s: float
    variables: int
    rows: int


def solve_literal(request: PlanRequest, seconds: float) -> Literal:
    """Build and solve. `seconds` limits the solver alone; building the Pyomo model is not counted.

    Raises ValueError for a request beyond the formulation above, or if the rounded solution's value is below the
    solver's by more than its tolerance.
    """
    begun = time.perf_counter()
    model = build_literal(request)
    build_s = time.perf_counter() - begun
    answer = solve(model, seconds)
    value = gap = None
    if answer.value is not None:
        value = _value(model, answer)
        # A solver that stops early may return a plan better than its Z, never a worse one.
        if not same(value, answer.value) and answer.value - value > 2 * ROW_TOLERANCE:
            raise ValueError(f"HiGHS claims {answer.value}, its plan gives {value}")
        if answer.bound is not None:
            gap = max(0.0, answer.bound - answer.value) / answer.bound if answer.bound else 0.0
    return Literal(
        answer.status,
        value,
        answer.bound,
        gap,
        build_s,
        answer.seconds,
        sum(1 for _ in model.component_data_objects(pyo.Var)),
        sum(1 for _ in model.component_data_objects(pyo.Constraint)),
    )


def build_literal(request: PlanRequest) -> Any:
    """Build the Pyomo model. Raises ValueError for a request that the formulation cannot express."""
    _refuse(request)
    nodes = list_gpus(request.gpus)
    layouts = [
        maximal_multisets(gpu_type(node.type)) if node.layouts is None else node.layouts for node in nodes
    ]
    # M[n][c]: most slices of profile c in one layout of GPU n
    most = [
        {name: max(layout.count(name) for layout in offered) for layout in offered for name in layout}
        for offered in layouts
    ]
    rates = [best_rates(model) for model in request.models]
    model = pyo.ConcreteModel()
    models = range(len(request.models))
    model.y = pyo.Var(
        [(n, number) for n, offered in enumerate(layouts) for number in range(len(offered))],
        domain=pyo.Binary,
    )
    keys = [
        (m, n, name)
        for m in models
        for n, node in enumerate(nodes)
        for name in most[n]
        if (node.type, name) in rates[m]
    ]
    model.x = pyo.Var(keys, domain=pyo.NonNegativeIntegers, bounds=lambda _, m, n, name: (0, most[n][name]))
    model.a = pyo.Var(models, range(len(nodes)), domain=pyo.Binary)
    model.z = pyo.Var(domain=pyo.NonNegativeReals)
    users: dict[tuple[int, str], list[int]] = {}
    held: list[list[tuple[int, str]]] = [[] for _ in models]
    for m, n, name in keys:
        users.setdefault((n, name), []).append(m)
        held[m].append((n, name))
    model.one_layout = pyo.ConstraintList()
    model.capacity = pyo.ConstraintList()
    model.placement = pyo.ConstraintList()
    model.fairness = pyo.ConstraintList()
    for n, offered in enumerate(layouts):
        model.one_layout.add(pyo.quicksum(model.y[n, number] for number in range(len(offered))) == 1)
    for (n, name), there in users.items():
        taken = pyo.quicksum(model.x[m, n, name] for m in there)
        slices = pyo.quicksum(
            layout.count(name) * model.y[n, number]
            for number, layout in enumerate(layouts[n])
            if name in layout
        )
        model.capacity.add(taken - slices <= 0)
    for m, n, name in keys:
        model.placement.add(model.x[m, n, name] - most[n][name] * model.a[m, n] <= 0)
    for m in models:
        spec = request.models[m]
        unit = spec.weight * spec.demand_rps
        normalised = pyo.quicksum(
            rates[m][nodes[n].type, name] / unit * model.x[m, n, name] for n, name in held[m]
        )
        model.fairness.add(model.z - normalised <= 0)
    model.objective = pyo.Objective(expr=model.z, sense=pyo.maximize)
    return model


def best_rates(model: PlanModel) -> dict[tuple[str, str], float]:
    """{(GPU type, profile): requests/s of the best point within the memory and the latency limit}."""
    (variant,) = model.variants
    (stage,) = variant.stages
    found: dict[tuple[str, str], float] = {}
    for point in stage.points:
        size = gpu_type(point.gpu_type).profile(point.profile).memory_gib
        if size is not None and (point.memory_gib or 0.0) > size:
            continue
        if model.max_latency_ms is not None and point.latency_ms > model.max_latency_ms * (1 + 1e-9):
            continue
        key = (point.gpu_type, point.profile)
        found[key] = max(found.get(key, 0.0), point.throughput_rps)
    return found


def _refuse(request: PlanRequest) -> None:
    """Refuse all but exclusive max_min of uncut models: the formulation would answer anything else wrongly."""
    plain = (
        request.objective.kind == "max_min"
        and request.objective.memory_violation_penalty is None
        and request.sharing == "exclusive"
        and not request.colocations
    )
    for model in request.models:
        whole = len(model.variants) == 1 and len(model.variants[0].stages) == 1
        plain = plain and whole and not model.cap_at_demand and not model.min_throughput_rps
    if not plain:
        raise ValueError("the literal formulation is for exclusive max_min of uncut models without minima")


def _value(model: Any, answer: ModelSolution) -> float:
    """Z of the rounded solution: the least normalised throughput."""
    for var in model.x.values():
        var.set_value(round(answer.values[id(var)]))
    model.z.set_value(0.0)
    # With Z at 0, a fairness row's slack is the model's normalised throughput.
    return min(-float(pyo.value(rule.body)) for rule in model.fairness.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=[(4, 2), (8, 4)], metavar="MxG")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of HiGHS")
    options = parser.parse_args()
    columns = ("models × GPUs", "variables", "rows", "build s", "solve s", "status", "Z", "bound", "gap")
    print(heading(columns))
    for models, gpus in options.sizes:
        found = solve_literal(instance(models, gpus, kind="max_min"), options.seconds)
        cells = (
            f"{models} × {gpus}",
            found.variables,
            found.rows,
            f"{found.build_s:.2f}",
            f"{found.solve_s:.2f}",
            found.status,
            value_text(found.value),
            value_text(found.bound),
            gap_text(found.gap),
        )
        print(row(cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
