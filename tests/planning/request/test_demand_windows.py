"""Demand over the day in plan requests: files, limits, the same windows for all models; a plan takes no notice."""

import json
import random
from dataclasses import replace

import pytest

from tests.support.paths import EXAMPLES
from torchsplit_core import workflow
from torchsplit_core.files import read_file, read_text, write_text
from torchsplit_core.planning.request.demand_windows import check_windows
from torchsplit_core.planning.request.difference import describe_changes
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.values import DemandLevels, DemandWindow, InputFault

DAY = DemandWindow("day", "07:00", "22:00", DemandLevels(30.0, 40.0), 20.0)
NIGHT = DemandWindow("night", "22:00", "07:00", 0)


@pytest.fixture(scope="module")
def request_without():
    return read_file(EXAMPLES / "plan_request.json")[1]


def with_all(request, windows=(), samples=()):
    models = (replace(model, demand_windows=windows, demand_samples=samples) for model in request.models)
    return replace(request, models=tuple(models))


def test_a_file_has_them_only_where_they_are_given(request_without):
    request = with_all(request_without, (DAY, NIGHT), (1.0, 0.0, 2.5))
    text = write_text(request)
    assert read_text(text)[1] == request
    model = json.loads(text)["models"][0]
    assert model["demand_windows"] == [
        {"name": "day", "from": "07:00", "to": "22:00", "demand_rps": {"mean": 30.0, "p95": 40.0},
         "min_throughput_rps": 20.0},
        {"name": "night", "from": "22:00", "to": "07:00", "demand_rps": 0},
    ]  # fmt: skip
    assert model["demand_samples"] == [1.0, 0.0, 2.5]
    assert "demand_windows" not in write_text(request_without)
    hashes = {
        request_hash(with_all(request_without, *given)) for given in (((DAY, NIGHT),), ((), (1.0,)), ())
    }
    assert len(hashes) == 3 and request_hash(request_without) in hashes


@pytest.mark.parametrize(("where", "value", "said"), [
    ("demand_rps", -1, "demand_rps: is -1, below the least value 0"),
    ("demand_rps", "x", "demand_rps: is 'x', not a number"),
    ("demand_rps", 1e-12, "demand_rps: is 1e-12, below the least positive value 1e-09"),
    ("demand_rps", {"mean": 1}, "demand_rps.p95: is missing"),
    ("demand_rps", {"mean": 1, "p95": 2, "p99": 3}, "demand_rps.p99: is not a known field"),
    ("from", "7:00", "from: is '7:00', not a time HH:MM from 00:00 to 24:00. Write for example 07:00."),
    ("to", "24:01", "to: is '24:01', not a time HH:MM"),
])  # fmt: skip
def test_a_bad_figure_of_a_file_is_named(request_without, where, value, said):
    data = json.loads(write_text(with_all(request_without, (DAY, NIGHT))))
    data["models"][1]["demand_windows"][0][where] = value
    with pytest.raises(InputFault) as caught:
        read_text(json.dumps(data), origin="file")
    assert str(caught.value).startswith(f"file: models[1].demand_windows[0].{said}")


def windows_of(*times):
    return tuple(DemandWindow(f"w{number}", *pair, 1.0) for number, pair in enumerate(times))


@pytest.mark.parametrize("times", [
    [("00:00", "24:00")], [("08:00", "08:00")], [("22:00", "07:00"), ("07:00", "22:00")],
    [("18:30", "00:00"), ("00:00", "18:30")],
])  # fmt: skip
def test_windows_are_a_day_in_any_order_and_beyond_midnight(times):
    check_windows("here", windows_of(*times))


@pytest.mark.parametrize(("times", "problem"), [
    ([("07:00", "22:00")], "00:00 belongs to no window"),
    ([("00:00", "12:00"), ("12:01", "00:00")], "12:00 belongs to no window"),
    ([("07:00", "22:00"), ("21:59", "07:00")], "21:59 belongs to 'w0' and to 'w1'"),
    ([("00:00", "24:00"), ("08:00", "08:00")], "08:00 belongs to 'w0' and to 'w1'"),
    ([("7:00", "07:00")], "'7:00' is not a time of day"),
])  # fmt: skip
def test_a_gap_and_an_overlap_are_named_by_their_minute(times, problem):
    with pytest.raises(InputFault) as caught:
        check_windows("here", windows_of(*times))
    assert caught.value.problem == problem


def test_a_day_cut_anywhere_is_whole_and_without_any_part_is_not():
    rng = random.Random(38)
    for _ in range(50):
        cuts = sorted(rng.sample(range(24 * 60), rng.randrange(2, 9)))
        clocks = [f"{cut // 60:02}:{cut % 60:02}" for cut in cuts]
        times = list(zip(clocks, clocks[1:] + clocks[:1], strict=True))
        rng.shuffle(times)
        check_windows("here", windows_of(*times))
        with pytest.raises(InputFault, match="belongs to no window"):
            check_windows("here", windows_of(*times[1:]))


def test_models_have_the_same_windows_and_as_many_samples(request_without):
    request = with_all(request_without, (DAY, NIGHT), (1.0, 2.0))
    first, second, third = request.models
    other_order = replace(second, demand_windows=(NIGHT, DAY), demand_samples=())
    validate(replace(request, models=(first, other_order, third)))
    later = (replace(DAY, start="08:00"), replace(NIGHT, end="08:00"))
    for changed, problem in (
        (replace(second, demand_windows=()), "has the windows none, and model bert has 'day', 'night'"),
        (replace(second, demand_windows=later), "has 'day' from 08:00 to 22:00, and model bert has it from 07:00 "
         "to 22:00"),
        (replace(second, demand_samples=(1.0,)), "has 1 entries, and model bert has 2"),
        (replace(second, demand_samples=(1.0, -1.0)), "is -1.0, below the least value 0"),
        (replace(second, demand_windows=(DAY, replace(NIGHT, name="day"))), "names the window 'day' twice"),
    ):  # fmt: skip
        with pytest.raises(InputFault) as caught:
            validate(replace(request, models=(first, changed, third)))
        assert caught.value.problem == problem
        assert caught.value.where.startswith("model mobilenetv2, demand_")


def test_a_plan_is_for_demand_rps_and_says_so_once(request_without):
    request = with_all(request_without, (DAY, NIGHT), (1.0, 2.0))
    plain, plan = workflow.plan(request_without), workflow.plan(request)
    (warning,) = set(plan.warnings) - set(plain.warnings)
    assert "demand_windows and demand_samples are not used" in warning
    assert plan.gpus == plain.gpus and plan.objective == plain.objective
    assert "demand over the day of bert 0 windows → 2 windows" in describe_changes(request_without, request)


def test_a_request_says_which_rate_of_two_is_planned_for(request_without):
    assert "plan_demand_at" not in write_text(request_without)
    mean = replace(request_without, plan_demand_at="mean")
    assert json.loads(write_text(mean))["plan_demand_at"] == "mean"
    assert read_text(write_text(mean))[1] == mean and request_hash(mean) != request_hash(request_without)
    assert describe_changes(request_without, mean) == ("demand of windows p95 → mean",)
    data = json.loads(write_text(mean)) | {"plan_demand_at": "p99"}
    with pytest.raises(InputFault, match="plan_demand_at"):
        read_text(json.dumps(data))
    with pytest.raises(InputFault, match="plan_demand_at: unknown value 'p99'"):
        validate(replace(request_without, plan_demand_at="p99"))
