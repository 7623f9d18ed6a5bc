"""The way from today's state in the tab Deploy: what is drawn and counted, the steps, the losses, the files."""

import shlex
from dataclasses import replace

import pytest

from app.format.glossary import explain
from app.plans.deploy.change_options import ChangeOptions, command
from app.plans.deploy.today import change_lines, counts, loss_sentence, map_marks
from tests.support.app.page import metrics, run, said
from tests.support.app.values import plan, request
from tests.support.transition.instances import plan_of, tenant
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_text
from torchsplit_core.pictures.numbers import THIN
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.transition import plan_transition, state_of_plan, throughput_over_time
from torchsplit_core.values import ForeignTenant, HostState, PlannedGpu, PlannedSlice, StateGpu, StateInstance

A100 = "A100-80GB"


def running() -> HostState:
    """The review's plan with ocr twice on the place of bert's slice, on a GPU of another name."""
    bert, ocr = (item.tenants[0] for item in plan().gpus[0].slices)
    instances = (
        StateInstance("2g.20gb", 0, None, (bert,)),
        StateInstance("2g.20gb", 2, None, (ocr,)),
        StateInstance("3g.40gb", 4, None, (ocr,)),
    )
    return HostState((StateGpu("node3/gpu0", A100, None, True, instances),))


def test_without_a_state_the_section_says_what_to_do(page, filled):
    opened = page("deploy", filled)
    assert "Say what runs on the GPUs now" in said(opened)
    assert "from" not in opened.query_params


def test_the_way_from_a_stored_state_is_counted_drawn_and_written(page, filled, files):
    filled.put("host_state", "node3", running())
    opened = page("deploy", filled, **{"from": "host_state:node3"})
    shown = metrics(opened)
    assert (shown["Untouched tenants"], shown["Kept instances"]) == ("1 of 3", "1 of 3")
    assert shown["Touched GPUs"] == "1 of 1" and shown["The change takes"] == "30 s"
    text = said(opened)
    assert "GPUs of the plan on the host: gpu0 is node3/gpu0." in text
    assert "bert loses most: down to 0 req/s of the 200 req/s asked, 30.5 model-seconds below demand" in text
    assert "1 of 2 models is below demand meanwhile" in text
    steps = next(frame.value for frame in opened.dataframe if "takes, s" in frame.value)
    assert list(steps["action"]) == [
        "drain and stop", "destroy instance", "drain and stop", "destroy instance", "create instance", "start",
    ]  # fmt: skip
    assert steps["begins, s"].is_monotonic_increasing and list(steps["takes, s"])[-1] == 20.0
    tables = [frame.value.columns for frame in opened.dataframe[:2]]
    assert all(explain(head) for heads in tables for head in heads)
    assert all(explain(label) for label in shown if label in ("Untouched tenants", "The change takes"))
    kind, outcome = read_text(files["review.transition.json"](), origin="transition")
    assert kind == "torchsplit.transition" and len(outcome.steps) == 6
    assert files["review.transition.txt"].startswith("untouched tenants: 1; kept instances: 1")


def test_the_command_gives_the_same_transition(page, filled, files, tmp_path, monkeypatch):
    filled.put("host_state", "node3", running())
    opened = page("deploy", filled, **{"from": "host_state:node3"})
    opened.number_input(key="today-start review").set_value(35.0)
    run(opened)
    (line,) = [code.value for code in opened.code if code.value.startswith("torchsplit transition")]
    monkeypatch.chdir(tmp_path)
    for name, data in files.items():
        if name.endswith((".plan.json", ".plan_request.json")):
            (tmp_path / name).write_bytes(data)
        elif name.endswith((".now.json", ".transition.json")):
            (tmp_path / name).write_text(data())
    words = shlex.split(line)[1:]
    assert words[-3:] == ["--start-s", "35", "--text"]
    assert main([*words[:-1], "-o", "again.json"]) == 0
    assert (tmp_path / "again.json").read_text() == (tmp_path / "review.transition.json").read_text()


def test_others_stay_unless_they_are_evicted(page, filled):
    theirs = tuple(replace(item, tenants=None) for item in running().gpus[0].instances)
    filled.put("host_state", "node3", HostState((replace(running().gpus[0], instances=theirs),)))
    opened = page("deploy", filled, **{"from": "host_state:node3"})
    (box,) = opened.error
    assert box.value.startswith("No way from this state")
    assert "unless you tick Evict others" in said(opened) and "Untouched tenants" not in metrics(opened)
    opened.checkbox(key="today-evict review").check()
    run(opened)
    assert not opened.error and metrics(opened)["Kept instances"] == "0 of 0"
    assert any(code.value.endswith("--evict-foreign --text") for code in opened.code)


def test_a_plan_that_runs_needs_nothing(page, filled):
    opened = page("deploy", filled, **{"from": "plan:review"})
    assert "Nothing to do: the plan runs already." in said(opened)
    assert metrics(opened)["Touched GPUs"] == "0 of 1"


def test_without_the_request_of_the_plan_demands_are_not_its(page, filled):
    filled.put("plan_request", "review", replace(request(), models=request().models[:1]))
    opened = page("deploy", filled, **{"from": "nothing"})
    assert "Demand: the lesser of a model's rates before and after." in said(opened)
    (line,) = [code.value for code in opened.code if code.value.startswith("torchsplit transition")]
    assert "--request" not in line


def test_marks_say_what_stays_goes_comes_and_changes():
    state = HostState(
        (
            StateGpu("h/gpu0", A100, None, True, (
                StateInstance("1g.10gb", 0, None, (tenant("a"),)),
                StateInstance("1g.10gb", 1, None, (tenant("b"),)),
                StateInstance("1g.10gb", 2, None, (tenant("c"),)),
                StateInstance("1g.10gb", 6, None, (ForeignTenant("somebody"),)),
            )),
        )
    )  # fmt: skip
    slices = (
        PlannedSlice("1g.10gb", 0, (tenant("a"),)),
        PlannedSlice("1g.10gb", 1, (tenant("d"),)),
        PlannedSlice("2g.20gb", 2, (tenant("c"),)),
    )
    outcome = plan_transition(plan_of([PlannedGpu("gpu0", A100, True, slices)]), state)
    now, then = map_marks(state, outcome)
    assert sorted(now.items()) == [
        (("h/gpu0", 0), "stays"), (("h/gpu0", 1), "drain"), (("h/gpu0", 2), "goes"), (("h/gpu0", 6), "stays"),
    ]  # fmt: skip
    assert set(then.values()) == {"stays", "other model", "new"} and then["h/gpu0", 6] == "stays"
    assert [(name, figure) for name, figure, _ in counts(state, outcome)[:3]] == [
        ("Untouched tenants", "1 of 3"), ("Kept instances", "2 of 3"), ("Touched GPUs", "1 of 1"),
    ]  # fmt: skip


def test_lines_are_shares_of_demand_and_models_without_one_are_left_out():
    state = running()
    outcome = plan_transition(plan(), state, request=request())
    during = [replace(model, demand_rps=0.0) if model.model == "ocr" else model for model in outcome.during]
    (line,) = change_lines(during, throughput_over_time(state, outcome, request()), {})
    assert line.label == "bert" and line.shares[0] == line.shares[-1] == 2.0 and min(line.shares) == 0.0
    calm = [replace(model, model_seconds_below_demand=0.0) for model in outcome.during]
    assert loss_sentence(calm) == "No model falls below its demand at any time."
    low = replace(
        outcome.during[0], before_rps=100.0, lowest_throughput_rps=100.0, model_seconds_below_demand=3.0
    )
    assert "at 100 req/s as today of the 200 req/s asked" in loss_sentence([low]).replace(THIN, " ")


@pytest.mark.parametrize("options", [ChangeOptions(), ChangeOptions("loss", evict=True)])
def test_the_command_says_what_is_not_the_default(options):
    line = command("transition", "a b", options, has_request=False)
    assert line.startswith("torchsplit transition 'a b.plan.json' --from 'a b.now.json'")
    assert ("--prefer loss --evict-foreign" in line) is (options.prefer == "loss")


def test_the_plan_and_its_state_name_the_same_request(filled):
    assert plan_transition(plan(), state_of_plan(plan())).request_sha256 == request_hash(request())


def test_what_lasts_no_time_is_not_drawn():
    (during,) = [
        model
        for model in plan_transition(plan(), running(), request=request()).during
        if model.model == "bert"
    ]
    times = {"bert": ((0.0, 400.0), (0.0, 0.0), (9.0, 900.0), (9.0, 200.0), (12.0, 200.0))}
    (line,) = change_lines([during], times, {})
    assert (line.seconds, line.shares) == ((0.0, 0.0, 9.0, 12.0), (2.0, 0.0, 1.0, 1.0))
