"""What each changed GPU buys: the request from the state, the job, the bounds and the sentence."""

from dataclasses import replace

import pytest

from app.format.glossary import explain
from app.plans.deploy import gain_curve
from app.plans.deploy.gain_curve import sentence
from tests.support.app.page import press, put_plan, said, turn_to
from tests.support.app.values import plan, request
from torchsplit_core import workflow
from torchsplit_core.jobs.job_kinds import SweepParameters
from torchsplit_core.jobs.sweep import sweep_job
from torchsplit_core.pictures.numbers import THIN
from torchsplit_core.planning.sweep.points import SweepPoint, sweep_requests
from torchsplit_core.transition import fleet_state, names_by_plan
from torchsplit_core.values import FleetEntry, HostState, InputFault, StateGpu, StateInstance, ignore_progress
from torchsplit_core.workspace.sweeps import StoredSweep, SweepStore

A100 = "A100-80GB"


def state(*names: str) -> HostState:
    """GPUs on which ocr has the slice that bert has in the plan."""
    _, ocr = (item.tenants[0] for item in plan().gpus[0].slices)
    instance = StateInstance("4g.40gb", 0, None, (replace(ocr, throughput_rps=400.0),))
    return HostState(tuple(StateGpu(name, A100, None, True, (instance,)) for name in names))


@pytest.fixture
def wide(workspace):
    """The review on two GPUs, planned, beside the state of a host with two."""
    asked = replace(request(), gpus=(FleetEntry(A100, count=2),))
    put_plan(workspace, asked, workflow.plan(asked))
    workspace.put("host_state", "node3", state("node3/gpu0", "node3/gpu1"))
    workspace.set_setting("scenario", "review")
    return workspace


def solve(workspace) -> StoredSweep:
    """Plan every point of the sweep that the page has begun."""
    store = SweepStore(workspace, "review")
    begun = store.load()
    assert begun is not None
    for _, varied in sweep_requests(begun.request, begun.what):
        store.save_plan(workflow.plan(varied), 60.0)
    solved = store.load()
    assert solved is not None
    return solved


def test_the_curve_is_planned_in_a_job_and_drawn(page, wide, started):
    opened = page("deploy", wide, **{"from": "host_state:node3"})
    press(opened, "Plan with few changes")
    ((kind, parameters),) = started
    assert (kind, parameters) == (
        "sweep",
        SweepParameters("review", "touched_gpus", "", (0.0, 1.0, 2.0), begun=True),
    )
    stored = solve(wide)
    assert stored.request.current is not None and wide.get("plan_request", "review").current is None
    assert {gpu.id for gpu in stored.request.current.gpus} == {"gpu0", "gpu1"}
    assert [point.outcome.touched_gpus for point in stored.points] == [0, 1, 2]
    assert sweep_job(wide, parameters, ignore_progress)["taken_over"] == 3
    again = page("deploy", wide, **{"from": "host_state:node3"})
    assert "2 touched GPUs bring 100 % of what 2 bring: 0 with 0" in said(again)
    table = next(frame.value for frame in again.dataframe if "bound" in frame.value)
    assert list(table["touched GPUs"]) == [0, 1, 2] and list(table["bound"]) == list(table["value"])
    assert all(explain(head) for head in table.columns)
    assert "Plan with few changes" not in [button.label for button in again.button]
    assert "of what 2 bring" not in said(page("deploy", wide, **{"from": "nothing"}))


def test_the_tab_sweep_shows_the_same_curve_and_varies_touched_gpus_where_there_is_a_state(
    page, wide, started
):
    press(page("deploy", wide, **{"from": "host_state:node3"}), "Plan with few changes")
    stored = solve(wide)
    opened = turn_to(page("plan", wide), "plan-tab", "Sweep")
    assert "The worst-served model gets from 0 (0 GPUs touched) to" in said(opened) and not opened.error
    offered = opened.selectbox(key="sweep-parameter review").options
    assert "Number of GPUs that may change" not in offered
    wide.put("plan_request", "review", stored.request)
    opened = turn_to(page("plan", wide), "plan-tab", "Sweep")
    opened.selectbox(key="sweep-parameter review").select("touched_gpus")
    press(opened, "Run the sweep")
    assert started[-1][1] == SweepParameters("review", "touched_gpus", "", (0.0, 1.0, 2.0), 60.0)


def test_the_plan_bounds_every_point(page, wide, started):
    press(page("deploy", wide, **{"from": "host_state:node3"}), "Plan with few changes")
    stored, planned = solve(wide), wide.get("plan", "review")
    loose = {
        value: replace(
            entry,
            outcome=replace(
                entry.outcome,
                status="feasible",
                objective=replace(entry.outcome.objective, bound=9.0, proven_levels=0),
            ),
        )
        for value, entry in stored.plans.items()
    }
    points = gain_curve.bounded_points(replace(stored, plans=loose), planned)
    assert [point.value for point in points] == [0.0, 1.0, 2.0]
    assert [point.bound for point in points] == [pytest.approx(planned.objective.bound)] * 3
    assert all(point.bound_from is None for point in points) and points[-1].proven


def test_a_sweep_that_was_deleted_meanwhile_is_told(wide):
    with pytest.raises(InputFault, match="was deleted before it ran"):
        sweep_job(wide, SweepParameters("review", "touched_gpus", "", (0.0,), begun=True), ignore_progress)


def test_states_get_the_names_of_the_fleet():
    fleet = {"gpu0": A100, "gpu1": A100}
    same = state("gpu1")
    assert fleet_state(fleet, replace(same, captured_at="now"), {}) == same
    elsewhere = state("h/gpu0", "h/gpu1")
    renamed = fleet_state(fleet, elsewhere, names_by_plan(plan(), elsewhere))
    assert sorted(gpu.id for gpu in renamed.gpus) == ["gpu0", "gpu1"]
    empty = HostState((*elsewhere.gpus, StateGpu("h/gpu2", A100)))
    assert len(fleet_state(fleet, empty, names_by_plan(plan(), empty)).gpus) == 2
    three = state("h/gpu0", "h/gpu1", "h/gpu2")
    with pytest.raises(InputFault, match="that the scenario's fleet has no place for"):
        fleet_state(fleet, three, names_by_plan(plan(), three))


def point(value: float, objective: float | None, status: str = "optimal") -> SweepPoint:
    return SweepPoint(value, status, plan(), objective=objective)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([], "No plan is found yet."),
        ([point(0, 1.0), point(1, 1.5), point(2, 1.9), point(3, 2.0)],
         "2 touched GPUs bring 90 % of what 3 bring: 1 with 0, 1.9 with 2, 2 with 3."),
        ([point(0, 5.0), point(1, 1.0), point(2, 1.0)], "1 touched GPU brings 100 % of what 2 bring"),
        ([point(0, 2.0), point(1, 2.0)], "Touching no GPU is as good as touching 1: 2."),
        ([point(0, None, "infeasible"), point(1, 2.0), point(2, 2.0)],
         "With fewer than 1 touched GPU a plan is proven impossible. Touching 1 is as good as touching 2: 2."),
        ([point(0, None, "timeout"), point(1, 2.0)], "With fewer than 1 touched GPU a plan is not found."),
    ],
)  # fmt: skip
def test_the_sentence_names_the_fewest_gpus_that_bring_most(points, words):
    assert sentence(points).replace(THIN, " ").startswith(words)
