"""The constraint families of the planner's programs as LP text: what the golden files hold.

`python -m tools.write_golden_lps` writes them anew after a change of a formulation.
"""

import io
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyomo.environ as pyo
from pyomo.repn.plugins.lp_writer import LPWriter

from tests.support.lp import highs_text
from tests.support.paths import ROOT
from tests.support.planning.requests import A30, simple
from torchsplit_core.planning.formulation.build import build
from torchsplit_core.planning.formulation.model import Formulation, Mode
from torchsplit_core.planning.formulation.objectives import solve_objective
from torchsplit_core.planning.fractional import relaxation
from torchsplit_core.planning.patterns.capacity import fleet_capacity
from torchsplit_core.planning.patterns.master import Column, _build_program
from torchsplit_core.planning.patterns.share_program import ShareProgram
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.problem.held_gpus import held_gpus, points_in_use
from torchsplit_core.planning.problem.touch_limit import with_held_gpus
from torchsplit_core.values import (
    WHOLE_GPU,
    Colocation,
    EnginePoint,
    FleetEntry,
    ForeignTenant,
    HostState,
    LlmModel,
    LlmPoint,
    Objective,
    ObjectiveKind,
    PlanModel,
    PlannedEngine,
    PlanRequest,
    Point,
    Stage,
    StateGpu,
    StateInstance,
    Tenant,
    Variant,
)

CONSTANT = "ONE_VAR_CONSTANT"
"""Pyomo's variable for an objective that is a constant."""

GOLDEN = ROOT / "tests" / "planning" / "golden"
DOCS = ROOT / "docs" / "internals" / "formulations.md"

Row = tuple[tuple[str, ...], str, str]
"""Names of the constraints, formula, function."""

TWO = (("1g.6gb", "1g.6gb", "2g.12gb"), ("4g.24gb",))
HALVES = (("2g.12gb", "2g.12gb"),)

SMALL = simple("small", {"1g.6gb": 10.0, "2g.12gb": 25.0}, memory_gib=4.0)
LARGE = simple("large", {"2g.12gb": 7.0, "4g.24gb": 20.0}, memory_gib=9.0)


def table(text: str, header: str) -> list[Row]:
    """The rows of the table below a header line, without backticks; a row of two cells has no function."""
    lines = text.split(header, 1)[1].splitlines()[1:]
    rows: list[Row] = []
    for line in lines:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip().strip("|").replace("`", "").split("|")]
        rows.append((tuple(cells[0].split(", ")), cells[1], cells[2] if len(cells) > 2 else ""))
    return rows


def cut(*stages: dict[str, tuple[float, float]], cut_bytes: float = 0.0, **demands: object) -> PlanModel:
    """A model whole on a 4g.24gb slice, or cut: for each stage (requests/s, ms) by profile."""
    parts = tuple(
        Stage(f"part{number}", tuple(Point(A30, name, 1, rate, late) for name, (rate, late) in stage.items()))
        for number, stage in enumerate(stages)
    )
    whole = Variant("whole", (Stage("whole", (Point(A30, "4g.24gb", 1, 20.0, 30.0),)),))
    return PlanModel("cut", (whole, Variant("cut", parts, (cut_bytes,))), **demands)  # type: ignore[arg-type]


TWO_PARTS = cut({"1g.6gb": (10.0, 10.0)}, {"1g.6gb": (8.0, 10.0), "2g.12gb": (16.0, 10.0)})
TIMED = cut(
    {"1g.6gb": (10.0, 30.0), "2g.12gb": (18.0, 10.0)}, {"1g.6gb": (8.0, 30.0), "2g.12gb": (16.0, 20.0)},
    cut_bytes=5e6, max_latency_ms=55.0, min_throughput_rps=4.0,
)  # fmt: skip


def asked(*models: PlanModel, count: int = 2, kind: ObjectiveKind = "max_min", **options: Any) -> PlanRequest:
    """A request of A30s with the two layouts of TWO, or the offered ones."""
    offered = options.pop("layouts", TWO)
    return PlanRequest(
        (FleetEntry(A30, count=count, layouts=offered),), models, objective=Objective(kind), **options
    )


def whole(request: PlanRequest, **how: Any) -> Formulation:
    """The program of whole slices."""
    return build(build_problem(request, **how), "exclusive")


def shares(*models: PlanModel, gamma: float | None = None, **options: Any) -> Formulation:
    """The program of shares, slice by slice, on one A30 of two 2g.12gb slices."""
    request = asked(*models, count=1, layouts=HALVES, sharing="fractional", **options)
    request = replace(request, objective=replace(request.objective, memory_violation_penalty=gamma))
    mode: Mode = "concrete"
    return build(build_problem(request, per_gpu=True), mode)


def searched(request: PlanRequest) -> Formulation:
    """The program of whole slices with all that its search has added."""
    built = whole(request)
    assert solve_objective(built, time.perf_counter() + 60.0).status == "optimal"
    return built


HARD, SOFT = Colocation(("small", "large")), Colocation(("small", "large", "third"), "soft", 1e6)
THIRD = replace(SMALL, name="third")
PAIR = asked(SMALL, LARGE, colocations=(HARD,))
CIRCLE = asked(SMALL, LARGE, THIRD, count=1, colocations=(SOFT,))
FEW = replace(CIRCLE, models=(SMALL, LARGE), colocations=(Colocation(("small", "large"), "soft", 1e6),))
ROUTED = Colocation(("small", "large"), "routed", 1e6)
CUT_FLOW = asked(SMALL, TWO_PARTS, colocations=(Colocation(("small", TWO_PARTS.name), "routed", 1e6),))
SLOW_LINK = asked(TIMED, link_gb_per_s=0.1)
SLACK = {"elastic": True, "elastic_latency": True}
SPARE = Objective("max_min", survives=1)
EASY = (replace(SMALL, min_throughput_rps=20.0), replace(LARGE, min_throughput_rps=5.0))


def held(limit: int, **options: Any) -> Formulation:
    """Three A30: the first holds the small model on a 2g and an idle 1g, the second a notebook."""
    small = Tenant("small", "whole", "whole", 1.0, 1, 1, 25.0, 4.0)
    now = (StateInstance("2g.12gb", 0, None, (small,)), StateInstance("1g.6gb", 2, None, ()))
    foreign = StateInstance("4g.24gb", 0, None, (ForeignTenant("a notebook"),))
    state = HostState((StateGpu("gpu0", A30, instances=now), StateGpu("gpu1", A30, instances=(foreign,))))
    request = asked(SMALL, LARGE, count=3, layouts=None, **options)
    request = replace(request, current=state, objective=Objective("max_min", max_touched_gpus=limit))
    holding = held_gpus(request)
    shared = request.sharing == "fractional"
    problem = build_problem(request, per_gpu=shared, in_use=points_in_use(holding))
    return build(with_held_gpus(problem, holding), "concrete" if shared else "exclusive")


def grouped(count: int) -> PlanRequest:
    """An engine on one or two GPUs, beside the small model on GPUs that MIG may cut."""
    points = tuple(
        EnginePoint(
            A30, "", 64, rate, 1.0, engine=PlannedEngine(gpus, None, None, 16, 64, 2048, None, True, None)
        )
        for gpus, rate in ((1, 4.0), (2, 9.0))
    )
    llm = LlmModel(None, points=tuple(LlmPoint(A30, "", p.throughput_rps, p.tensor_parallel) for p in points))
    chat = PlanModel("chat", (Variant("whole", (Stage("whole", points),)),), llm=llm)
    request = asked(SMALL, chat, count=count, layouts=TWO)
    return replace(request, gpus=tuple(replace(entry, mig="either") for entry in request.gpus))


BUILDS: dict[str, Callable[[], Formulation]] = {
    "layout_choice": lambda: whole(asked(SMALL, LARGE)),
    "slice_capacity": lambda: whole(asked(SMALL, LARGE)),
    "slice_capacity-shares": lambda: shares(SMALL, LARGE),
    "home_capacity": lambda: whole(PAIR),
    "home_presence": lambda: whole(PAIR),
    "held": lambda: held(1),
    "held_use": lambda: held(1),
    "held_use-shares": lambda: held(1, sharing="fractional"),
    "touch_limit": lambda: held(1),
    "twin_order": lambda: whole(asked(SMALL, LARGE, count=3), per_gpu=True),
    "gpu_limit": lambda: whole(grouped(5)),
    "gpu_limit-gpus": lambda: whole(grouped(2), per_gpu=True),
    "one_variant": lambda: whole(asked(TWO_PARTS)),
    "variant_use": lambda: whole(asked(TWO_PARTS)),
    "every_stage": lambda: whole(asked(TWO_PARTS)),
    "every_stage-shares": lambda: shares(replace(TIMED, variants=TIMED.variants[1:])),
    "latency_level": lambda: whole(asked(TIMED)),
    "latency_use": lambda: whole(asked(TIMED)),
    "latency_limit": lambda: whole(asked(TIMED, link_gb_per_s=1.0)),
    "latency_limit-elastic": lambda: whole(asked(TIMED, link_gb_per_s=1.0), **SLACK),
    # 5 MB over 0.1 GB/s take 50 of the 55 ms: with 6 MB the transfer alone is too long for the cut.
    "latency_limit-elastic_transfer": lambda: whole(
        replace(SLOW_LINK, models=(_with_cut_bytes(TIMED, 6e6),)), **SLACK
    ),
    "share_present": lambda: shares(SMALL, LARGE),
    "share_present-together": lambda: shares(SMALL, LARGE, colocations=(HARD,)),
    "share_latency": lambda: shares(replace(SMALL, max_latency_ms=40.0), LARGE),
    "slice_memory": lambda: shares(SMALL, LARGE),
    "slice_memory-penalty": lambda: shares(SMALL, LARGE, gamma=0.5),
    "slice_alone": lambda: shares(SMALL, simple("large", {"2g.12gb": 7.0}, memory_gib=None)),
    "slice_tenants": lambda: shares(SMALL, LARGE, max_tenants_per_slice=1),
    # 5 MB a request over 0.1 GB/s: 20 requests/s, where the slice has 18 and 16 for both of its stages; 12 over 0.06.
    "link_rate": lambda: shares(
        replace(TIMED, variants=TIMED.variants[1:], max_latency_ms=None), link_gb_per_s=0.06
    ),
    "stage_rate": lambda: searched(asked(TWO_PARTS)),
    "demand_cap": lambda: searched(asked(replace(SMALL, demand_rps=30.0, cap_at_demand=True), LARGE)),
    "min_throughput": lambda: whole(asked(*EASY)),
    "min_throughput-elastic": lambda: whole(asked(*EASY), elastic=True),
    "worst_loss": lambda: whole(replace(asked(*EASY), objective=SPARE)),
    "after_loss": lambda: whole(replace(asked(replace(TWO_PARTS, min_throughput_rps=5.0)), objective=SPARE)),
    "survival": lambda: whole(replace(asked(*EASY), objective=SPARE)),
    "survival-elastic": lambda: whole(replace(asked(*EASY), objective=SPARE), elastic=True),
    "presence_up": lambda: whole(PAIR, per_gpu=True),
    "presence_down": lambda: whole(PAIR, per_gpu=True),
    "presence_down-shares": lambda: shares(SMALL, LARGE, colocations=(HARD,)),
    "hard_colocation": lambda: whole(PAIR, per_gpu=True),
    "separation": lambda: whole(CIRCLE, per_gpu=True),
    "stage_there": lambda: whole(CUT_FLOW),
    "kept_there": lambda: whole(CUT_FLOW),
    "kept_there-shares": lambda: shares(SMALL, LARGE, colocations=(ROUTED,)),
    "leaving": lambda: whole(CUT_FLOW),
    "level_deficit": lambda: searched(asked(SMALL, LARGE, kind="leximin")),
    "level_floor": lambda: searched(asked(SMALL, LARGE, kind="leximin")),
    "reached": lambda: searched(replace(FEW, objective=Objective("weighted_sum"))),
    "reached-min_gpus": lambda: searched(replace(FEW, models=EASY, objective=Objective("min_gpus"))),
}
"""A program that contains the family, by golden file; what follows the hyphen tells variants of a family apart."""


def _with_cut_bytes(model: PlanModel, cut_bytes: float) -> PlanModel:
    return replace(model, variants=(model.variants[0], replace(model.variants[1], cut_bytes=(cut_bytes,))))


def family_of(component: str, families: list[str]) -> str | None:
    """The family of a constraint: its name, or the beginning of it (stage_rate_level1_0_0)."""
    fitting = [name for name in families if component == name or component.startswith(f"{name}_")]
    return max(fitting, key=len, default=None)


def constraint_names(built: Formulation) -> set[str]:
    """The names of all constraints of a program, also of those without a row."""
    return {item.local_name for item in built.model.component_objects(pyo.Constraint)}


def family_text(name: str) -> str:
    """The rows of the family in its program, as LP text with the bounds and types of their variables."""
    built, family = BUILDS[name](), name.split("-")[0]
    for item in built.model.component_objects(pyo.Objective):
        item.deactivate()
    built.model.nothing_sought = pyo.Objective(expr=0.0)
    for item in built.model.component_objects(pyo.Constraint):
        if family_of(item.local_name, [family]) is None:
            item.deactivate()
    stream = io.StringIO()
    LPWriter().write(built.model, stream, symbolic_solver_labels=True)
    # The writer's own objective and its variable say nothing about the family.
    rows = "s.t." + stream.getvalue().split("s.t.", 1)[1].replace(f"   1 <= {CONSTANT} <= 1\n", "")
    assert CONSTANT not in rows, f"the program of {name} has no row of its family"
    legend = "".join(f"\\ {line}\n" for line in _legend(built, rows))
    return f"{legend}\nmin\nobj:\n\n{rows}"


def _legend(built: Formulation, rows: str) -> list[str]:
    """What the numbers in the names of the variables stand for, as far as they occur."""
    problem = built.problem
    lines = []
    for number, use in enumerate(built.slice_uses):
        if f"x({number})" in rows or f"b({number})" in rows:
            choice, point = use.choice, use.choice.point
            variant = problem.request.models[choice.model].variants[choice.variant]
            lines.append(
                f"use {number}: {problem.request.models[choice.model].name}, "
                f"{variant.name}/{variant.stages[choice.stage].name} on {choice.profile} of group {choice.group}"
                + (f", slice {use.slot}" if use.slot is not None else "")
                + (f", layout {use.layout}" if use.layout is not None else "")
                + f": {point.throughput_rps:g}/s, {point.latency_ms:g} ms, {choice.memory_gib:g} GiB"
            )
    for number, case in enumerate(problem.cases):
        if re.search(rf"\b(w\({number}\)|delta\({number}_|v_\w+_{number}\b)", rows):
            model = problem.request.models[case.model]
            lines.append(f"case {number}: {model.name}, {model.variants[case.variant].name}")
    for g, group in enumerate(problem.groups):
        for number, layout in enumerate(group.layouts):
            if f"y({g}_{number})" in rows:
                present = [
                    problem.request.models[model].name for model in sorted(layout.present_members or ())
                ]
                there = (
                    f", present: {', '.join(present) or 'none'}" if layout.present_members is not None else ""
                )
                lines.append(f"layout {number} of group {g}: {' '.join(layout.profiles)}{there}")
    return lines


def master_text(*, integral: bool) -> str:
    """The master program of two models, two patterns each, with a second level that one may miss.

    The second model is an engine on one or two GPUs.
    """
    problem = build_problem(grouped(5))
    supply = fleet_capacity(problem)

    def pattern(model: int, level: int, profile: str, count: int, group: int = 0) -> Column:
        usage = np.zeros(len(supply.pools), dtype=np.int64)
        usage[supply.pools.index((group, profile))] = count
        return model, level, usage

    columns = [
        pattern(0, 0, "1g.6gb", 2), pattern(0, 1, "2g.12gb", 2), pattern(1, 0, WHOLE_GPU, 2),
        pattern(1, 1, WHOLE_GPU, 1, group=1),
    ]  # fmt: skip
    prices = np.array([1.0, 2.0, 4.0, 8.0]) if integral else None
    flags = np.ones((1, 2), dtype=np.bool_)
    highs = _build_program(supply, flags, columns, (1,), None, whole=integral, prices=prices)
    names = [spec.name for spec in problem.request.models]
    rows = [f"one_pattern({name})" for name in names]
    rows += [f"pool({g},{profile})" for g, profile in supply.pools]
    rows += [f"fleet({g})" for g in range(len(supply.gpus))]
    rows += [f"limit({i})" for i in range(len(supply.at_most))] + ["below(1)"]
    heads = [f"lambda({names[model]},{number})" for number, (model, _, _) in enumerate(columns)]
    heads += [f"y({g},{number})" for g, number in supply.columns] + ["zeta"]
    pools = [f"short({g},{profile})" for g, profile in supply.pools]
    heads += pools if integral else [f"missing({name})" for name in names]
    return highs_text(highs, rows, heads)


class _Built(Exception):
    """Carries a program out of the function that builds it."""


def pooled_text() -> str:
    """The program of pooled shares as its first level begins: two variants, a minimum, a cap, an engine on two GPUs."""
    capped = replace(SMALL, min_throughput_rps=5.0, demand_rps=20.0, cap_at_demand=True)
    fleet = grouped(2)
    problem = build_problem(replace(fleet, models=(TWO_PARTS, capped, fleet.models[1]), sharing="fractional"))
    supply = fleet_capacity(problem)

    def caught(*given: Any) -> ShareProgram:
        raise _Built(ShareProgram(*given))

    with patch.object(relaxation, "ShareProgram", caught):
        try:
            relaxation.aggregate_shares(problem, time.perf_counter() + 60.0)
        except _Built as built:
            (program,) = built.args
    program.set_floors(program.floors, np.ones(len(program.units), dtype=bool))
    cases = [
        f"{spec.name},{spec.variants[case.variant].name}"
        for case in problem.cases
        for spec in [problem.request.models[case.model]]
    ]
    names = [spec.name for spec in problem.request.models]
    pools = [f"{g},{profile}" for g, profile in supply.pools]
    stages = dict.fromkeys((share.case, share.stage) for share in program.shares)
    rows = [f"pool({pool})" for pool in pools] + [f"fleet({g})" for g in range(len(supply.gpus))]
    rows += [f"limit({i})" for i in range(len(supply.at_most))]
    rows += [f"stage({cases[case]},{stage})" for case, stage in stages]
    rows += [f"served({name})" for name in names] + [f"rising({name})" for name in names]
    heads = [f"x({cases[share.case]},{share.stage},{pools[share.pool]})" for share in program.shares]
    heads += [f"y({g},{number})" for g, number in supply.columns] + [f"v({case})" for case in cases] + ["t"]
    return highs_text(program.highs, rows, heads)


MATRICES: dict[str, Callable[[], str]] = {
    "master": lambda: master_text(integral=True),
    "master-relaxed": lambda: master_text(integral=False),
    "pooled": pooled_text,
}
"""Whole programs that go to HiGHS as matrices, by golden file."""


def golden_text(name: str) -> str:
    """What the golden file of this name holds."""
    return MATRICES[name]() if name in MATRICES else family_text(name)


NAMES = (*BUILDS, *MATRICES)
