"""Rows of the inputs: each field edits its own value, marks what it was, and refuses what makes no sense."""

from dataclasses import replace
from typing import Any

import pytest

from app.components.field_rows import Edit
from app.plans.inputs import fleet, models, objective, pairs
from app.plans.inputs.fields import ItemMatch, match_items, number, restore_item, whole_number
from tests.support.app.values import request
from torchsplit_core.values import (
    Colocation,
    FleetEntry,
    GammaArrivals,
    InputFault,
    Objective,
    PlanRequest,
    TraceArrivals,
)


def model(field: str, value: Any, asked: PlanRequest | None = None, name: str = "bert") -> PlanRequest:
    asked = asked or request()
    return models.apply_edit(asked, asked, Edit(name, field, value))


def gpu(field: str, value: Any, asked: PlanRequest, place: int = 0) -> PlanRequest:
    return fleet.apply_edit(asked, asked, Edit(str(place), field, value))


def fault(change: Any) -> str:
    with pytest.raises(InputFault) as caught:
        change()
    return str(caught.value)


@pytest.mark.parametrize(("field", "text", "attribute", "value"), [
    ("demand_rps", "55", "demand_rps", 55.0),
    ("demand_rps", 57.5, "demand_rps", 57.5),
    ("demand_rps", "1\u202f463.5", "demand_rps", 1463.5),
    ("demand_rps", "1e3", "demand_rps", 1000.0),
    ("max_latency_ms", "", "max_latency_ms", None),
    ("min_throughput_rps", "9", "min_throughput_rps", 9.0),
    ("min_throughput_rps", "0", "min_throughput_rps", 0.0),
    ("weight", " 2 ", "weight", 2.0),
    ("cap_at_demand", True, "cap_at_demand", True),
    ("max_response_ms", "200", "max_response_ms", 200.0),
    ("response_percentile", "99", "response_percentile", 99.0),
    ("response_percentile", "", "response_percentile", 95.0),
    ("arrivals", "gamma:2", "arrivals", GammaArrivals(200.0, 2.0)),
])  # fmt: skip
def test_a_field_of_a_model_reaches_the_request(field, text, attribute, value):
    first, second = model(field, text).models
    assert getattr(first, attribute) == value and second == request().models[1]


def test_a_price_from_a_table_leaves_with_its_type_and_a_typed_one_has_no_date():
    dated = replace(request(), gpus=(FleetEntry("A100-80GB", cost=2.5, cost_date="2026-11-20"),))
    assert gpu("cost", "3", dated).gpus[0] == FleetEntry("A100-80GB", cost=3.0)
    away = gpu("type", "A30-24GB", dated)
    assert away.gpus[0] == FleetEntry("A30-24GB")
    assert fleet.apply_edit(dated, away, Edit("0", "type", "A100-80GB")) == dated


@pytest.mark.parametrize(("field", "text", "words"), [
    ("demand_rps", "", "demand, req/s: is empty. Enter a number above 0."),
    ("demand_rps", "0", "is 0.0, not above 0. Give a number above 0."),
    ("demand_rps", "-3", "is -3.0, not above 0"),
    ("demand_rps", "1e30", "above the greatest value 1e+15. Check its unit."),
    ("demand_rps", "nan", "not a finite number"),
    ("demand_rps", "bert", "is 'bert', not a number. Enter a number"),
    ("demand_rps", "1,5", "is '1,5', not a number. Write a point for decimals: 1.5."),
    ("min_throughput_rps", "-1", "min, req/s: is -1.0, below the least value 0"),
    ("max_latency_ms", "0", "p95 ≤, ms: is 0.0, not above 0"),
    ("weight", "", "weight: is empty"),
    ("tier", "-1", "tier: is -1, below the least value 0"),
    ("tier", "1.5", "tier: is '1.5', not a whole number"),
    ("tier", "1001", "tier: is 1001, above the greatest value 1000"),
    ("tier", "high", "tier: is 'high', not a whole number"),
    ("response_percentile", "100", "is 100, and no limit holds"),
    ("arrivals", "gauss", "arrivals: is 'gauss'"),
    ("arrivals", "gamma:0", "arrivals"),
    ("arrivals", "poisson at -3", "arrivals"),
    ("ways", [], "ways to run: no variant of whole is allowed"),
])  # fmt: skip
def test_what_makes_no_sense_says_so_with_the_remedy(field, text, words):
    assert words in fault(lambda: model(field, text))


def test_a_tier_is_a_whole_number_and_goes_with_a_fair_objective():
    assert [one.tier for one in model("tier", "3").models] == [3, 0]
    assert [one.tier for one in model("tier", "", model("tier", "3")).models] == [0, 0]
    fewest = replace(request(), objective=Objective("min_gpus"))
    assert "tier: is min_gpus, which knows no tiers" in fault(lambda: model("tier", "3", fewest))
    kind = Edit("objective", "kind", "min_gpus")
    assert "which knows no tiers" in fault(lambda: objective.apply_edit(model("tier", "3"), kind))


def test_arrivals_go_with_the_demand_and_a_trace_stays():
    first, second = request().models
    gamma = replace(first, arrivals=GammaArrivals(first.demand_rps, 2.0))
    asked = replace(request(), models=(gamma, replace(second, arrivals=TraceArrivals((0.0, 0.25, 1.0)))))
    assert model("demand_rps", "7", asked).models[0].arrivals == GammaArrivals(7.0, 2.0)
    assert model("demand_rps", "9", asked, "ocr").models[1].arrivals == asked.models[1].arrivals
    assert model("arrivals", "", asked).models[0].arrivals is None


def test_a_model_that_leaves_takes_its_pairs_and_is_put_back_at_its_place():
    asked = replace(request(), colocations=(Colocation(("bert", "ocr")),))
    left = model("remove", True, asked)
    assert [model.name for model in left.models] == ["ocr"] and not left.colocations
    assert models.apply_edit(asked, left, Edit("bert", "restore", True)).models == asked.models
    # The last one stays, and what is not there any more is no fault.
    assert models.apply_edit(asked, left, Edit("ocr", "remove", True)) is left
    assert models.apply_edit(asked, left, Edit("bert", "weight", "2")) is left


def test_a_row_of_the_fleet_edits_its_entry_and_leaves_the_others():
    layouts = (("3g.40gb", "4g.40gb"), ("1g.10gb",) * 7)
    first = FleetEntry("A100-80GB", "n/g", layouts=layouts, cost=2.5, node="n")
    asked = replace(request(), gpus=(first, FleetEntry("A100-80GB", count=3)))
    for field, value, expected in (
        ("count", "3", replace(first, count=3, id=None)),
        ("count", 1.0, first),
        ("cost", "", replace(first, cost=None)),
        ("node", " m ", replace(first, node="m")),
        ("id", "", replace(first, id=None)),
        ("layouts", "7g.80gb", replace(first, layouts=(("7g.80gb",),))),
        ("layouts", "", replace(first, layouts=None)),
        ("mig", False, replace(first, mig=False, layouts=None)),
        ("type", "H100-SXM5-80GB", replace(first, type="H100-SXM5-80GB", layouts=None)),
    ):
        assert gpu(field, value, asked).gpus == (expected, asked.gpus[1]), field
    # Back at what is stored, an entry has again what did not fit meanwhile.
    for field, other, stored in (
        ("count", "3", "1"), ("mig", False, True), ("type", "A30-24GB", "A100-80GB"),
    ):  # fmt: skip
        away = gpu(field, other, asked)
        assert fleet.apply_edit(asked, away, Edit("0", field, stored)) == asked, field


@pytest.mark.parametrize(("field", "text", "words"), [
    ("count", "", "count: is empty"),
    ("count", "0", "count: is 0, below the least value 1"),
    ("count", "-2", "below the least value 1"),
    ("count", "1.5", "is '1.5', not a whole number"),
    ("count", "1e9", "at most 4096 are planned"),
    ("cost", "free", "price: is 'free', not a number"),
    ("layouts", "7g", "layouts: unknown profile '7g'. Did you mean 7g.80gb?"),
    ("layouts", "bad layout", "layouts: 'bad layout' is not a layout"),
    ("id", "a\nb", "id: is 'a\\nb', which contains a control character"),
])  # fmt: skip
def test_a_figure_of_the_fleet_that_makes_no_sense_says_so(field, text, words):
    assert words in fault(lambda: gpu(field, text, request()))


def test_rows_of_the_fleet_are_added_removed_and_put_back():
    asked = request()
    two = gpu("add", {"type": "H100-SXM5-80GB"}, asked)
    assert two.gpus == (*asked.gpus, FleetEntry("H100-SXM5-80GB"))
    alone = fleet.apply_edit(asked, two, Edit("0", "remove", True))
    assert alone.gpus == (FleetEntry("H100-SXM5-80GB"),)
    # As many rows as stored: the one there is taken for the edited one, and the last one stays.
    assert fleet.apply_edit(asked, alone, Edit("0", "remove", True)) is alone
    stored = replace(asked, gpus=(FleetEntry("A30-24GB"), *asked.gpus))
    left = gpu("remove", True, stored)
    assert left.gpus == asked.gpus and fleet.apply_edit(stored, left, Edit("0", "restore", True)) == stored
    assert fleet.apply_edit(stored, left, Edit("7", "count", "2")) is left


def test_pairs_are_edited_and_more_than_two_stay_together():
    third = replace(request().models[0], name="asr")
    three = Colocation(("bert", "ocr", "asr"), "soft", 1.2e6)
    asked = replace(request(), models=(*request().models, third), colocations=(three,))

    def pair(field, value, place=0):
        return pairs.apply_edit(asked, asked, Edit(str(place), field, value)).colocations

    assert pair("mode", "hard") == (replace(three, mode="hard"),)
    assert pair("mode", "routed") == (replace(three, mode="routed"),)
    assert "its bytes_per_request is 0" in fault(
        lambda: pairs.apply_edit(
            asked, replace(asked, colocations=(Colocation(("bert", "asr")),)), Edit("0", "mode", "routed")
        )
    )
    assert pair("megabytes", "2.5") == (replace(three, bytes_per_request=2.5e6),)
    assert pair("megabytes", "") == (replace(three, bytes_per_request=0.0),)
    assert pair("add", {"first": "bert", "second": "asr"}, 1) == (three, Colocation(("bert", "asr")))
    assert pair("remove", True) == ()
    assert "not two or more different models" in fault(
        lambda: pair("add", {"first": "bert", "second": "bert"}, 1)
    )
    assert "below the least value 0" in fault(lambda: pair("megabytes", "-1"))
    two = replace(asked, colocations=(Colocation(("bert", "ocr")),))
    second = pairs.apply_edit(two, two, Edit("0", "second", "asr"))
    assert second.colocations == (Colocation(("bert", "asr")),)
    left = pairs.apply_edit(two, two, Edit("0", "remove", True))
    assert pairs.apply_edit(two, left, Edit("0", "restore", True)) == two


def test_the_objective_refuses_what_makes_no_sense():
    def said(field, text):
        return fault(lambda: objective.apply_edit(request(), Edit("objective", field, text)))

    assert "Search at most, s: is 0.0, not above 0" in said("time_limit_s", "0")
    assert "not a whole number" in said("max_tenants_per_slice", "1.5")
    assert "below the least value 1" in said("max_tenants_per_slice", "0")
    assert "below the least value 0" in said("memory_violation_penalty", "-1")
    fewest = objective.apply_edit(request(), Edit("objective", "kind", "min_gpus"))
    assert fewest.objective.kind == "min_gpus"


def test_what_is_stored_and_what_is_edited_are_matched():
    # Of one length, or longer: edited where they stand, and new ones behind them.
    assert match_items("ab", "xb", str) == (ItemMatch(0, 0), ItemMatch(1, 1))
    assert match_items("a", "ab", str) == (ItemMatch(0, 0), ItemMatch(None, 1))
    # Of a shorter list what is equal, then what is of one kind.
    assert match_items("abc", "ac", str) == (ItemMatch(0, 0), ItemMatch(1, None), ItemMatch(2, 1))
    assert match_items("aBc", "bc", str.lower) == (ItemMatch(0, None), ItemMatch(1, 0), ItemMatch(2, 1))
    assert match_items("ab", "c", str) == (ItemMatch(0, None), ItemMatch(1, None), ItemMatch(None, 0))
    # Names: another one is another thing.
    assert match_items(["a", "b"], ["c", "b"]) == (ItemMatch(0, None), ItemMatch(None, 0), ItemMatch(1, 1))
    assert restore_item("ac", "b", match_items("abc", "ac"), 1) == ("a", "b", "c")
    assert number("", "x") is None and number("٤٦", "x") == 46.0 and whole_number("1 024", "x") == 1024
    for text in ("1,5", "1.5", "3 ms", "∞", "inf"):
        with pytest.raises(InputFault, match=r"not a whole number\. Enter 1, 2, 3, …"):
            whole_number(text, "count")
