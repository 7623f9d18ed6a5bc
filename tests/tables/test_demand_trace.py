"""Traces of demand: bad tables, holes, the cut of least cost against every cut, windows in a request."""

import json
from itertools import combinations

import numpy as np
import pytest

from tests.support.paths import EXAMPLES
from tests.support.seeds import in_blocks, repeated
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file
from torchsplit_core.planning.request.demand_windows import check_windows
from torchsplit_core.tables.demand_trace.request_windows import (
    WindowSettings,
    trace_of_models,
    with_trace_windows,
)
from torchsplit_core.tables.demand_trace.trace_csv import read_demand_trace
from torchsplit_core.tables.demand_trace.window_cut import (
    DaySlots,
    cut_day,
    peak_weights,
    slots_of_day,
    window_levels,
)
from torchsplit_core.values import DemandLevels, InputFault

REQUEST = EXAMPLES / "plan_request.json"
STEP_S = 7200


def table(*rates: float | str, name: str = "bert", begin: int = 0) -> str:
    """A trace of a service, a row every two hours."""
    return f"time_s,{name}\n" + "".join(f"{begin + STEP_S * k},{rate}\n" for k, rate in enumerate(rates))


DAY = [1, 1, 1, 2, 8, 9, 8, 7, 3, 3, 2, 1]


@pytest.mark.parametrize(("text", "where", "problem"), [
    ("", "", "is empty"),
    ("time_s,a\n", "", "has 0 rows of demand"),
    ("time_s,a\n0,1\n", "", "has 1 rows of demand"),
    ("hour,a\n0,1\n60,1\n", ": header", "has no column time_s"),
    ("time_s,a,a\n0,1,1\n60,1,1\n", ": header", "names 'a' twice"),
    ("time_s,\n0,1\n60,1\n", ": header", "has a column without a name"),
    ("time_s,a\n600,1\n0,1\n", ": line 3, time_s", "falls from 600 to 0"),
    ("time_s,a\n0,1\n0,1\n", ": line 3, time_s", "0 stands twice"),
    ("time_s,a\n0,1\n600,1\n1250,1\n", ": line 4, time_s", "is 1250, between two steps"),
    ("time_s,a\n0,1\n1,1\n", ": time_s", "in steps of 1 s"),
    ("time_s,a\n0,1\n420,1\n", ": time_s", "in steps of 420 s"),
    ("time_s,a\n30,1\n630,1\n", ": time_s", "from 30"),
    ("time_s,a\n0.5,1\n600,1\n", ": line 2, time_s", "not a whole number of seconds"),
    ("time_s,a\n0,1\n600,-1\n", ": line 3, a", "is -1, below 0"),
    ("time_s,a\n0,1\n600,x\n", ": line 3, a", "'x'"),
    ("time_s,a\n0,1\n600,inf\n", ": line 3, a", "not a finite number"),
    ("time_s,a\n" + "".join(f"{86400 * day},1\n" for day in range(365)), "", "covers 365 days"),
])  # fmt: skip
def test_a_bad_trace_is_refused_where_it_is_bad(text, where, problem):
    with pytest.raises(InputFault) as caught:
        read_demand_trace(text, "trace.csv")
    assert caught.value.where == f"trace.csv{where}" and problem in caught.value.problem


def test_missing_rows_and_empty_cells_are_holes():
    trace = read_demand_trace("time_s,a,b\n0,1,\n600,2,5\n1800,3,6\n")
    assert trace.rates == {"a": (1.0, 2.0, None, 3.0), "b": (None, 5.0, None, 6.0)}
    assert (trace.step_s, trace.moments) == (600, 4)


def test_a_time_of_day_without_any_value_is_named():
    with pytest.raises(InputFault) as caught:
        slots_of_day(read_demand_trace(table(*DAY[:7])), STEP_S)
    assert caught.value.problem == "has no value at 14:00 on any day"


def test_days_lie_above_one_another_by_the_time_of_day():
    trace = read_demand_trace(table(*DAY, *[2 * rate for rate in DAY], begin=6 * 3600))
    slots = slots_of_day(trace, STEP_S)
    assert slots.values[3, :, 0].tolist() == [1.0, 2.0]
    assert slots.values[8, :, 0].tolist() == [9.0, 18.0]


def drawn(seed: int) -> DaySlots:
    """Two services over eight slots of three hours and up to three days, with holes."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 12, (8, rng.integers(1, 4), 2)).astype(float)
    values[rng.random(values.shape) < 0.2] = np.nan
    values[:, 0] = np.where(np.isnan(values[:, 0]), 1.0, values[:, 0])
    return DaySlots(("a", "b"), 10800, values)


def cost_of(slots: DaySlots, demand: str, begins: tuple[int, ...]) -> float:
    """By the words: hours times the rates of each window, each over the service's largest value."""
    total = 0.0
    for first, later in zip(begins, (*begins[1:], begins[0] + 8), strict=True):
        held = np.concatenate([slots.values[at % 8] for at in range(first, later)])
        rates = np.nanmax(held, axis=0) if demand == "largest" else np.nanpercentile(held, 95, axis=0)
        total += 3.0 * (later - first) * float(rates @ peak_weights(slots))
    return total


@repeated("demand", ["largest", "p95"])
@in_blocks("seed", range(100), kept=1)
def test_the_cut_costs_as_little_as_the_cheapest_of_all(demand, seed):
    slots = drawn(seed)
    for windows in (1, 2, 3, 5, 8):
        cut = cut_day(slots, windows, demand)
        every = [cost_of(slots, demand, begins) for begins in combinations(range(8), windows)]
        best = min(every) if windows > 1 else cost_of(slots, demand, (0,))
        assert cut.cost == pytest.approx(best)
        assert cost_of(slots, demand, tuple(first for first, _ in cut.windows)) == pytest.approx(best)
        assert sum(length for _, length in cut.windows) == 8


def test_more_windows_never_cost_more_and_a_day_of_slots_is_the_trace_itself():
    slots = slots_of_day(read_demand_trace(table(*DAY)), STEP_S)
    costs = [cut_day(slots, windows, "largest").cost for windows in range(1, 13)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == pytest.approx(2.0 * sum(DAY) / 9)
    for windows, remedy in ((0, "Ask for one window at least"), (13, "Ask for fewer windows")):
        with pytest.raises(InputFault, match=f"is {windows}, and the day has 12 slots. {remedy}"):
            cut_day(slots, windows, "largest")


def test_a_window_has_the_largest_the_p95_or_both():
    slots = slots_of_day(read_demand_trace(table(*DAY)), STEP_S)
    cut = cut_day(slots, 1, "both")
    (largest,), (high,), (both,) = (window_levels(slots, cut, what) for what in ("largest", "p95", "both"))
    assert largest["bert"] == 9.0
    assert high["bert"] == pytest.approx(np.percentile(DAY, 95))
    assert both["bert"] == DemandLevels(pytest.approx(np.mean(DAY)), high["bert"])


def test_windows_of_a_request_are_a_day_and_hold_every_value():
    request = read_file(REQUEST)[1]
    trace, notes = trace_of_models(
        read_demand_trace(table(*DAY, name="x")), request, [("x", "bert")], {None: 2.0}
    )
    filled, _ = with_trace_windows(request, trace, WindowSettings(3))
    check_windows("here", filled.models[0].demand_windows)
    for window in filled.models[0].demand_windows:
        first, minutes = window.minutes
        slots = range(first // 120, (first + minutes) // 120)
        assert window.demand_rps == 2.0 * max(DAY[slot % 12] for slot in slots)
    assert {window.demand_rps for window in filled.models[1].demand_windows} == {request.models[1].demand_rps}
    assert any("mobilenetv2 has no column" in note for note in notes)
    assert filled.models[0].demand_rps == request.models[0].demand_rps
    assert with_trace_windows(request, trace, WindowSettings(3), peak=True)[0].models[0].demand_rps == 18.0


@pytest.mark.parametrize(("entries", "scale", "problem"), [
    ([], {}, "none of the models"),
    ([("y", "bert")], {}, "no column 'y'"),
    ([("x", "nobody")], {}, "no model 'nobody'"),
    ([("x", "bert"), ("z", "bert")], {}, "two columns"),
    ([("x", "bert")], {"resnet50": 2.0}, "no column is 'resnet50'"),
])  # fmt: skip
def test_columns_and_models_are_matched_or_refused(entries, scale, problem):
    trace = read_demand_trace("time_s,x,z\n0,1,1\n600,1,1\n")
    with pytest.raises(InputFault) as caught:
        trace_of_models(trace, read_file(REQUEST)[1], entries, scale)
    assert problem in caught.value.problem


def test_the_command_says_what_is_missing_and_writes_the_request(tmp_path, capsys):
    trace = tmp_path / "trace.csv"
    trace.write_text("time_s,bert,other\n" + "".join(
        f"{STEP_S * k},{'' if k == 20 else DAY[k % 12] if k != 5 else 0},1\n" for k in range(24)
    ))  # fmt: skip
    out = tmp_path / "request.json"
    told = [
        "windows",
        str(REQUEST),
        "--trace",
        str(trace),
        "--windows",
        "2",
        "--scale",
        "bert=10",
        "-o",
        str(out),
    ]
    assert main(told) == 0
    err = capsys.readouterr().err
    assert "columns that are no model: other" in err
    assert "bert: 1 of 24 moments have no value" in err
    assert "bert: 1 of 24 moments have a demand of 0" in err
    windows = json.loads(out.read_text())["models"][0]["demand_windows"]
    assert max(window["demand_rps"] for window in windows) == 90.0
    assert main([*told, "--zeros-are-holes"]) == 0
    assert "bert: 2 of 24 moments have no value" in capsys.readouterr().err
    for more, problem in (
        (["--scale", "0"], "--scale"),
        (["--slot", "7"], "--slot"),
        (["--map", "x"], "--map"),
    ):
        assert main([*told, *more]) == 2
        assert problem in capsys.readouterr().err
