"""Objectives of demand samples in plan requests: files, and what is wrong with them."""

import json
from dataclasses import replace

import pytest

from tests.support.paths import EXAMPLES
from torchsplit_core.files import read_file, read_text, write_text
from torchsplit_core.planning.request.difference import describe_changes
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.validate import check_minima, validate
from torchsplit_core.values import InputFault, Objective

HELD = Objective("min_gpus", attainment=0.9)


@pytest.fixture(scope="module")
def sampled_request():
    request = read_file(EXAMPLES / "plan_request.json")[1]
    models = tuple(replace(model, demand_samples=(1.0, 0.0, 2.5)) for model in request.models)
    return replace(request, models=models, objective=HELD)


def test_a_share_stands_in_the_file_where_it_is_asked_for(sampled_request):
    text = write_text(sampled_request)
    assert read_text(text)[1] == sampled_request
    assert json.loads(text)["objective"]["attainment"] == 0.9
    largest = replace(sampled_request, objective=Objective("attainment"))
    assert read_text(write_text(largest))[1] == largest
    assert "attainment" not in json.loads(write_text(largest))["objective"]
    hashes = {request_hash(replace(sampled_request, objective=one)) for one in (HELD, Objective("min_gpus"))}
    assert len(hashes) == 2
    # The share stands for minima, so none has to be given.
    check_minima(sampled_request)
    plain = replace(sampled_request, objective=Objective("min_gpus"))
    assert describe_changes(plain, sampled_request) == ("share of samples none → 0.9",)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "is 0, not above 0"),
        (-0.5, "is -0.5, not above 0"),
        (1.01, "is 1.01, above 1"),
        (float("nan"), "not a finite number"),
        (True, "not a number"),
    ],
)
def test_a_share_is_above_0_and_at_most_1(sampled_request, value, words):
    with pytest.raises(InputFault) as caught:
        validate(replace(sampled_request, objective=replace(HELD, attainment=value)))
    assert caught.value.where == "objective.attainment" and words in caught.value.problem


@pytest.mark.parametrize("value", [0, 1.5, "most", None])
def test_a_file_with_a_bad_share_is_refused(sampled_request, value):
    data = json.loads(write_text(sampled_request))
    data["objective"]["attainment"] = value
    if value is None:
        assert read_text(json.dumps(data))[1].objective.attainment is None
        return
    with pytest.raises(InputFault, match=r"objective\.attainment"):
        validate(read_text(json.dumps(data))[1])


@pytest.mark.parametrize("objective", [HELD, Objective("attainment")])
def test_every_model_has_as_many_samples_and_some(sampled_request, objective):
    request = replace(sampled_request, objective=objective)
    first, second, third = request.models
    for changed, problem in (
        (replace(second, demand_samples=()), "is empty, and the objective"),
        (replace(second, demand_samples=(1.0,)), "has 1 entries, and model bert has 3"),
        (replace(second, demand_samples=(1.0, 2.0, -1.0)), "is -1.0, below the least value 0"),
        (replace(second, demand_samples=(1.0, 2.0, float("inf"))), "is inf, not a finite number"),
        (replace(second, demand_samples=(1.0, 2.0, None)), "is None, not a number"),
        (replace(second, max_response_ms=50.0), "holds throughputs at many demands"),
    ):
        with pytest.raises(InputFault) as caught:
            validate(replace(request, models=(first, changed, third)))
        assert problem in caught.value.problem and "model mobilenetv2" in caught.value.where
    many = tuple(replace(model, demand_samples=(1.0,) * 100_001) for model in request.models)
    with pytest.raises(InputFault, match="has 100,001 entries, at most 100,000 are planned for"):
        validate(replace(request, models=many))


def test_a_share_asks_for_the_least_cost(sampled_request):
    for kind in ("leximin", "max_min", "weighted_sum", "attainment"):
        with pytest.raises(InputFault) as caught:
            validate(replace(sampled_request, objective=replace(HELD, kind=kind)))
        assert caught.value.where == "objective.attainment"
    for penalty in ({"separation_weight": 0.5}, {"memory_violation_penalty": 2.0}):
        with pytest.raises(InputFault) as caught:
            validate(replace(sampled_request, objective=Objective("attainment", **penalty)))  # type: ignore[arg-type]
        assert caught.value.where == f"objective.{next(iter(penalty))}"
        validate(replace(sampled_request, objective=replace(HELD, **penalty)))
