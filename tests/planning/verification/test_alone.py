"""The check of a plan stands alone: who calls it, what it shares, and that a fault of the planner's figures shows."""

import ast
import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import torchsplit_core
from tests.support.planning.requests import on_a30, simple
from torchsplit_core.planning import plan
from torchsplit_core.planning.baselines.baseline_plans import build_baselines
from torchsplit_core.planning.explanation.settling import Settling
from torchsplit_core.planning.manual.evaluate import evaluate, from_plan
from torchsplit_core.planning.outcome.figures import level_values, plan_penalty
from torchsplit_core.planning.outcome.fleet_mapping import with_request_ids
from torchsplit_core.planning.request import fleet
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.verification.claims import find_point
from torchsplit_core.planning.verification.colocation import members_on_gpu
from torchsplit_core.planning.verification.cost import check_costs
from torchsplit_core.planning.verification.engines import group_faults
from torchsplit_core.planning.verification.flows import flow_faults
from torchsplit_core.planning.verification.layout import layout_faults
from torchsplit_core.planning.verification.models import check_models
from torchsplit_core.planning.verification.objective import check_objective
from torchsplit_core.planning.verification.outcome import demand_faults, slice_faults, verify, violations
from torchsplit_core.planning.verification.samples import samples_faults
from torchsplit_core.planning.verification.touched import touch_faults
from torchsplit_core.values import Colocation, InternalFault, Objective, PlanOutcome, PlanRequest

CHECK = {
    part.__module__
    for part in (
        verify, layout_faults, check_models, check_costs, check_objective, flow_faults, find_point,
        members_on_gpu, touch_faults, group_faults, samples_faults,
    )
}  # fmt: skip
ENTRANCES = {part.__name__ for part in (verify, violations, slice_faults, demand_faults)}
CALLERS = {part.__module__ for part in (plan, build_baselines, evaluate, with_request_ids, Settling)}
SHARED = {fleet.__name__, request_hash.__module__}


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


def imported(path: Path) -> list[tuple[str, str]]:
    """(module, name) of every import of a file, wherever it stands."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.module or "", alias.name) for alias in node.names]
    return found


def planner_files() -> dict[str, Path]:
    """The modules of planning/ by their dotted names; its door, which re-exports, apart."""
    root = Path(str(torchsplit_core.__file__)).parent
    files = (root / "planning").rglob("*.py")
    return {
        ".".join(("torchsplit_core", *path.relative_to(root).with_suffix("").parts)): path
        for path in files
        if path.name != "__init__.py"
    }


def test_only_what_leaves_with_a_plan_calls_the_check():
    callers = {}
    for name, path in planner_files().items():
        for source, part in imported(path):
            asked = source if source in CHECK else f"{source}.{part}" if f"{source}.{part}" in CHECK else None
            if asked is not None and name not in CHECK:
                callers.setdefault(name, set()).add(part)
    assert set(callers) == CALLERS
    assert set().union(*callers.values()) <= ENTRANCES


def test_the_check_shares_nothing_but_the_fleet_and_the_requests_hash():
    files = planner_files()
    for name in CHECK:
        own = {source for source, _ in imported(files[name]) if source.startswith("torchsplit_core.planning")}
        assert own <= CHECK | SHARED, name


def overfull() -> PlanRequest:
    """A model that pays 0.01 a GiB for the 6.62 it needs beyond the largest slice."""
    model = simple("large", {"4g.24gb": 8.0}, memory_gib=30.0)
    return on_a30(model, objective=Objective(memory_violation_penalty=0.01))


def torn() -> PlanRequest:
    """Two models that stand apart because each is best alone, and pay for it."""
    models = tuple(simple(name, {"4g.24gb": 8.0}) for name in ("a", "b"))
    pair = Colocation(("a", "b"), "soft", 10.0)
    objective = Objective(separation_weight=0.01)
    return on_a30(*models, count=2, colocations=(pair,), objective=objective)


@pytest.mark.parametrize(("request_of", "paid"), [(overfull, 0.01 * (30.0 - 23.375)), (torn, 0.2)])
def test_a_wrong_penalty_of_the_planner_is_refused(request_of, paid, monkeypatch):
    assert callable(request_of)
    request = request_of()
    outcome = plan(request)
    assert isinstance(outcome, PlanOutcome) and outcome.objective.value is not None
    assert plan_penalty(request, outcome.gpus) == pytest.approx(paid, rel=1e-2)
    assert outcome.objective.value == pytest.approx(8.0 - plan_penalty(request, outcome.gpus))
    figures = module(level_values.__module__)
    monkeypatch.setattr(figures, plan_penalty.__name__, lambda *_: 0.0)
    with pytest.raises(InternalFault, match="claims "):
        plan(request)


def test_a_plan_by_hand_shows_what_the_check_finds():
    models = tuple(simple(name, {"2g.12gb": 8.0}, latency_ms=50.0, memory_gib=8.0) for name in ("a", "b"))
    request = on_a30(*models, count=2, sharing="fractional")
    outcome = plan(request)
    limits = ({"max_latency_ms": 40.0}, {"min_throughput_rps": 90.0})
    harder = tuple(replace(model, **limit) for model, limit in zip(models, limits, strict=True))  # type: ignore[arg-type]
    asked = replace(request, models=harder, colocations=(Colocation(("a", "b")),), max_tenants_per_slice=1)
    forged = replace(outcome, request_sha256=request_hash(asked))
    shown = evaluate(asked, from_plan(outcome)).faults
    assert len(shown) > 2 and set(violations(asked, forged)) == set(shown)
    with pytest.raises(InternalFault, match="fails its check: gpu0"):
        verify(asked, forged)
