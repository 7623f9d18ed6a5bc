"""What is told of routed co-locations, in files, by the command and on the page; what changes of a request keep."""

from dataclasses import replace

import pytest

from app.plans.summary import metrics
from tests.support.planning.requests import A30, LAYOUTS, on_a30, simple
from torchsplit_core.cli.plan_summary import summary_lines
from torchsplit_core.files import read_file, write_file
from torchsplit_core.planning import plan
from torchsplit_core.planning.explanation.changes import without_demand
from torchsplit_core.planning.request.colocation_index import flows_of
from torchsplit_core.values import Colocation, Objective, PlanOutcome, Point, RoutedBytes, Stage, Variant

REQUEST = on_a30(
    simple("a", {"2g.12gb": 10.0}, demand_rps=8.0), simple("b", {"2g.12gb": 3.0}, demand_rps=8.0),
    layouts=(LAYOUTS[1],), colocations=(Colocation(("a", "b"), "routed", 1e6),),
)  # fmt: skip


@pytest.fixture(scope="module")
def outcome() -> PlanOutcome:
    return plan(REQUEST)


def test_files_carry_it_and_leave_it_out_where_there_is_none(outcome, tmp_path):
    path = tmp_path / "plan.json"
    write_file(outcome, path)
    assert read_file(path)[1].objective.routed == RoutedBytes(5e6, 5e6, 0.0)
    write_file(plan(replace(REQUEST, colocations=())), path)
    assert "routed" not in path.read_text()
    write_file(REQUEST, path)
    assert read_file(path)[1] == REQUEST


def test_command_and_page_say_what_is_sent_and_what_is_proven_of_it(outcome):
    assert "5 MB/s between GPUs (bound 5, gap 0)" in "\n".join(summary_lines(REQUEST, outcome))

    def said(plan):
        return " ".join(str(metric) for metric in metrics(plan, REQUEST))

    silent = replace(outcome, objective=replace(outcome.objective, routed=None))
    told = RoutedBytes(5e6, 2e6, 0.6)
    open_ = replace(outcome, objective=replace(outcome.objective, routed=told))
    assert " · 5 MB/s between GPUs, at least 2 needed" in said(open_)
    assert "between GPUs" not in said(silent)


def test_a_link_dropped_leaves_what_stages_send_as_it_was():
    def stage(name):
        return Stage(name, (Point(A30, "2g.12gb", 1, 10.0, 10.0, memory_gib=0.0),))

    cut = Variant("cut", tuple(map(stage, "xyz")), (0.0, 0.0), cut_bytes_per_request=(5.0, 7.0))
    request = replace(
        REQUEST, models=(replace(REQUEST.models[0], variants=(cut,)),),
        colocations=(Colocation(("a/x", "a/y", "a/z"), "routed"),),
        objective=Objective(separation_weight=1e-3), link_gb_per_s=1e-9,
    )  # fmt: skip
    dropped = {change.spec.what: change.apply(request) for change in without_demand(request)}
    assert [flow.bytes_per_request for flow in flows_of(dropped["link"])] == [5.0, 7.0]
    assert dropped["colocation"].objective.separation_weight == 0.0
