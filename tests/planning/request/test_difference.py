"""What two requests differ in, in words: every field that a user can edit, and nothing where nothing was."""

from dataclasses import replace

import pytest

from tests.support.app.values import point, request
from torchsplit_core.planning.request.difference import describe_changes, difference
from torchsplit_core.values import Colocation, FleetEntry, Objective, SolverOptions, Stage, Variant
from torchsplit_core.values.plan.front import FrontCosts

BERT, OCR = request().models
CUT = Variant("cut1", (Stage("cut1.1of1", (point("3g.40gb", 1.0),)),), allowed=False)
MANY = [replace(CUT, name=f"cut{number}", allowed=True) for number in range(1, 7)]


@pytest.mark.parametrize(("after", "words"), [
    ({}, ()),
    ({"gpus": (FleetEntry("A100-80GB", count=6),)}, ("A100-80GB 1 → 6",)),
    ({"gpus": (FleetEntry("A100-80GB"), FleetEntry("A100-80GB", count=2))}, ("A100-80GB (row 2) added: 2",)),
    ({"gpus": (FleetEntry("A100-80GB", mig=False, count=2),)},
     ("MIG of A100-80GB on → off", "A100-80GB 1 → 2")),
    ({"gpus": (FleetEntry("A30-24GB", mig=False, count=3),)},
     ("A100-80GB removed", "A30-24GB, whole added: 3")),
    (
        {"gpus": (FleetEntry("A100-80GB", "g", layouts=(("7g.80gb",),), cost=2.5, node="n"),)},
        ("id of A100-80GB none → g", "node of A100-80GB none → n", "price of A100-80GB none → 2.5",
         "layouts of A100-80GB all → 7g.80gb"),
    ),
    ({"gpus": (FleetEntry("A100-80GB", cost=2.5, cost_date="2026-11-20"),)},
     ("price of A100-80GB none → 2.5", "price date of A100-80GB none → 2026-11-20")),
    ({"models": (replace(BERT, demand_rps=57.5, weight=2.0), OCR)},
     ("demand of bert 200 → 57.5", "weight of bert 1 → 2")),
    ({"models": (BERT, replace(OCR, max_latency_ms=None, min_throughput_rps=5.0, cap_at_demand=True))},
     ("p95 limit of ocr 80 ms → none", "minimum of ocr none → 5 req/s", "cap of ocr off → on")),
    ({"models": (OCR,)}, ("bert removed",)),
    ({"models": (BERT, OCR, replace(OCR, name="clip"))}, ("clip added",)),
    ({"models": (replace(BERT, variants=(*BERT.variants, CUT)), OCR)},
     ("figures of bert 2 points → 3 points",)),
    ({"models": (replace(BERT, variants=(*BERT.variants, replace(CUT, allowed=True))), OCR)},
     ("variants of bert whole → whole, cut1",)),
    ({"models": (replace(BERT, variants=(*BERT.variants, *MANY)), OCR)},
     ("variants of bert 1 variant → 7 variants, with cut1, cut2, cut3, cut4, cut5, cut6",)),
    ({"link_gb_per_s": 12.0, "network_gb_per_s": 1.5}, ("link none → 12 GB/s", "network none → 1.5 GB/s")),
    ({"front": FrontCosts(0.1912)}, ("costs of the front none → 0.191 ms a request",)),
    ({"colocations": (Colocation(("bert", "ocr")),)}, ("bert and ocr together added",)),
    (
        {"objective": Objective("min_gpus", 0.5, 1e-6, 1), "sharing": "fractional",
         "max_tenants_per_slice": 3, "solver": SolverOptions(5.0, "low")},
        ("objective fair → fewest GPUs", "slices exclusive → fractional",
         "tenants of a slice none → 3", "penalty of memory none → 0.5",
         "weight of separation 0 → 1e-06", "GPUs it survives 0 → 1", "search 60 s → 5 s",
         "plan at nominal → low"),
    ),
])  # fmt: skip
def test_every_difference_is_told(after, words):
    edited = replace(request(), **after)  # type: ignore[arg-type]
    assert describe_changes(request(), edited) == words
    # And backwards: as many, each with its two values changed over.
    back = {change.what: (change.new, change.old) for change in difference(edited, request())}
    assert back == {change.what: (change.old, change.new) for change in difference(request(), edited)}
