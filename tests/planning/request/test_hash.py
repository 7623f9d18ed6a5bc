"""The fingerprint of a request: canonical JSON by a definition of its own, and the same from release to release."""

import hashlib
import json
import random
from dataclasses import asdict, replace
from typing import Any

from tests.support.planning.edits import with_each_model, with_points
from tests.support.seeds import in_blocks
from torchsplit_core.files.contract import write_text
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import (
    Colocation,
    EnginePoint,
    FleetEntry,
    GammaArrivals,
    LlmModel,
    LlmPoint,
    PlanModel,
    PlanRequest,
    Point,
    PoissonArrivals,
    Stage,
    Variant,
)

SPEEDS = (7, 7.0, 0.1, 1e-9, 1e22)


YOUNGER = {
    "allowed": True, "cut_bytes_per_request": (), "low_rps": None, "pace": None, "high_rps": None,
    "node": None, "mig": True, "survives": 0, "source": None, "max_response_ms": None,
    "response_percentile": 95.0, "arrivals": None, "nodes": (), "plan_at": "nominal",
    "network_gb_per_s": None, "bytes_per_request": None, "front": None, "tier": 0, "max_touched_gpus": None,
    "attainment": None,
    "current": None, "demand_windows": (), "demand_samples": (),
    "llm": None, "seed": 0, "plan_demand_at": "p95",
}  # fmt: skip


def canonical(value: Any) -> Any:
    """Whole numbers as floats; fields younger than the contract are there only where they say something."""
    if isinstance(value, dict):
        return {key: canonical(item) for key, item in value.items() if YOUNGER.get(key, value) != item}
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def by_definition(request: PlanRequest) -> str:
    asked = asdict(request)
    for entry in asked["gpus"]:
        # Once there was no way to leave a price out.
        entry["cost"] = 1.0 if entry["cost"] is None else entry["cost"]
        # Of when a price is says nothing of the plan.
        del entry["cost_date"]
    text = json.dumps(canonical(asked), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def drawn(draw: random.Random) -> PlanRequest:
    def variant(name):
        stages = tuple(
            Stage(f"s{k}", tuple(
                Point("A100-80GB", profile, 8, draw.choice(SPEEDS), draw.random(), memory_gib=draw.choice([None, 3]))
                for profile in ("1g.10gb", "3g.40gb")
            ))
            for k in range(draw.randint(1, 3))
        )  # fmt: skip
        return Variant(
            name, stages, cut_bytes=(12,) * (len(stages) - 1), allowed=draw.random() < 0.7,
            cut_bytes_per_request=draw.choice([(), (5,) * (len(stages) - 1)]),
        )  # fmt: skip

    models = tuple(
        PlanModel(
            name, (variant("whole"), variant('"ü\u2028\\')), weight=draw.choice([1, 2.5]),
            demand_rps=draw.randint(1, 9),
        )
        for name in ("bert", "ocr")
    )  # fmt: skip
    pairs = (Colocation(("bert", "ocr"), "soft", draw.choice([0, 1.5e6])),) if draw.random() < 0.5 else ()
    priced = draw.choice([{}, {"cost": 2.5}, {"cost": 2.5, "cost_date": "2026-11-20"}])
    return PlanRequest((FleetEntry("A100-80GB", count=draw.randint(1, 4), **priced),), models, pairs)


@in_blocks("seed", range(40))
def test_it_is_the_hash_of_the_canonical_text(seed):
    request = drawn(random.Random(seed))
    assert request_hash(request) == by_definition(request)
    # One model changed, as an edit does: what was kept of the others must not stand for it.
    models = (replace(request.models[0], weight=7.5), *request.models[1:])
    assert request_hash(replace(request, models=models)) == by_definition(replace(request, models=models))
    first = request.models[0].variants[0].stages[0].points[0]
    faster = with_points(
        request.models[0],
        lambda point: replace(point, throughput_rps=point.throughput_rps * 2) if point is first else point,
    )
    edited = replace(request, models=(faster, *request.models[1:]))
    assert request_hash(edited) == by_definition(edited) != request_hash(request)


def test_a_whole_number_is_the_same_as_its_float():
    one = drawn(random.Random(1))
    whole = with_each_model(one, weight=2)
    point = with_each_model(one, weight=2.0)
    assert request_hash(whole) == request_hash(point)


def test_a_limit_of_the_response_and_arrivals_make_another_request():
    request = drawn(random.Random(0))
    model = request.models[0]
    changes = (
        {"max_response_ms": 5.0}, {"response_percentile": 99.0}, {"arrivals": PoissonArrivals(3.0)},
        {"arrivals": PoissonArrivals(4.0)}, {"arrivals": GammaArrivals(3.0, 2.0)},
    )  # fmt: skip
    found = {
        request_hash(replace(request, models=(replace(model, **change), *request.models[1:])))
        for change in ({}, *changes)
    }
    assert len(found) == 1 + len(changes)


def test_the_engines_of_an_llm_are_no_part_of_its_hash():
    llm = LlmModel(None, points=(LlmPoint("H100-SXM5-80GB", "", 9.0),))
    request = PlanRequest((FleetEntry("H100-SXM5-80GB", mig=False),), (PlanModel("chat", llm=llm),))
    point = EnginePoint("H100-SXM5-80GB", "", 128, 9.0, 1.0)
    resolved = replace(
        request,
        models=(replace(request.models[0], variants=(Variant("whole", (Stage("whole", (point,)),)),)),),
    )
    assert request_hash(resolved) == request_hash(request)
    slower = replace(llm, points=(replace(llm.points[0], throughput_rps=8.0),))
    assert request_hash(replace(request, models=(PlanModel("chat", llm=slower),))) != request_hash(request)
    assert write_text(resolved) == write_text(request)
