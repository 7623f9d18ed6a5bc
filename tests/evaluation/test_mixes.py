"""The mixes of the grid: requests that the planner takes, on layouts that the driver takes, with their bases."""

from dataclasses import replace
from itertools import product

import pytest

from torchsplit_core.evaluation.grid import RULES, cases
from torchsplit_core.evaluation.mixes import MIXES, STOCK_LAYOUTS, case_request, mix
from torchsplit_core.hardware import gpu_type, place_layout
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.values import InputFault
from torchsplit_core.values.evaluation.outcome import CaseKey


def test_every_case_asks_something_that_makes_sense_and_something_else():
    every = cases(quick=False)
    assert len(set(every)) == len(every) == len(MIXES) * 2 * (len(RULES) + 2 * 3 * 3 + 2)
    assert set(cases(quick=True)) < set(every)
    for name, tied in product(MIXES, ("off", "routed", "soft", "hard")):
        validate(case_request(CaseKey(name, "stock", "fractional", tied, "favoured", "planner"), 1.0))  # type: ignore[arg-type]


def test_a_case_asks_for_what_its_key_says():
    key = CaseKey("S1", "any", "fractional", "routed", "favoured", "planner")
    request = case_request(key, 4.0)
    assert (request.sharing, request.objective.kind, request.solver.time_limit_s) == (
        "fractional", "leximin", 4.0,
    )  # fmt: skip
    assert [model.weight for model in request.models] == [2.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert [(tie.models, tie.mode) for tie in request.colocations] == [
        (("densenet121", "inceptionv3"), "routed"), (("mobilenetv2", "resnet50"), "routed"),
    ]  # fmt: skip
    total = case_request(replace(key, weights="throughput", colocation="off"), 4.0)
    assert (total.objective.kind, total.colocations) == ("weighted_sum", ())
    with pytest.raises(InputFault, match="S2"):
        mix("S2")


def test_stock_layouts_are_legal_and_the_only_ones_offered():
    kind = gpu_type("A100-80GB")
    assert all(place_layout(kind, layout) is not None for layout in STOCK_LAYOUTS)
    for key in (key for key in cases(quick=True) if key.planner == "greedy"):
        offered = {entry.layouts for entry in case_request(key, 1.0).gpus}
        assert offered == ({STOCK_LAYOUTS} if key.regime == "stock" else {None})


def test_bert_is_measured_and_the_others_of_the_seed_are_estimates_with_intervals():
    for model in mix("four").request.models:
        (variant,) = model.variants
        bases = {point.basis for point in variant.stages[0].points}
        assert bases == ({"measured"} if model.name == "bert" else {"estimated"})
        if model.name != "bert":
            points = variant.stages[0].points
            assert all(p.low_rps and p.high_rps and p.low_rps < p.throughput_rps < p.high_rps for p in points)
    cut = mix("four_cut").request.models
    assert {p.basis for m in cut for v in m.variants for s in v.stages for p in s.points} == {"estimated"}
    assert {len(v.stages) for m in cut for v in m.variants} == {2}


def test_tied_are_the_stages_of_a_cut_with_what_crosses_it():
    found = mix("four_cut")
    clip = found.request.models[0].variants[0]
    pair = found.pairs[0]
    assert (pair.first, pair.second) == tuple(f"clip/{stage.name}" for stage in clip.stages)
    assert pair.bytes_per_request == clip.cut_bytes[0] + clip.cut_bytes_per_request[0] > 500_000


def test_the_fewest_gpus_are_asked_of_every_mix_with_its_demands_as_minima():
    keys = [key for key in cases(quick=False) if key.weights == "fewest_gpus"]
    assert {(key.mix, key.regime, key.sharing) for key in keys} == set(
        product(MIXES, ("any", "stock"), ("exclusive", "fractional"))
    )
    request = case_request(keys[0], 1.0)
    validate(request)
    assert request.objective.kind == "min_gpus"
    assert [model.min_throughput_rps for model in request.models] == [m.demand_rps for m in request.models]
