"""The Place page beyond one pipeline: several at once, the curve, ways compared, nodes added."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.charts.frontier import frontier as drawn
from app.charts.pipeline import colour_of, topology_html
from app.placements import comparison, nodes, outcome_tables
from app.placements import curve as placements_curve
from app.session import placements
from app.session.result_kind import PLACEMENT
from tests.support.app.page import field, metrics, press, said
from tests.support.app.placement_page import example, number, place_it
from torchsplit_core.jobs import runner
from torchsplit_core.jobs.job_kinds import DIVISIONS, PLACEMENT_FRONTIER, RequestParameters, to_stored
from torchsplit_core.jobs.place import placement_frontier_job, ways_job
from torchsplit_core.placement import violations
from torchsplit_core.placement.request.divisions import division_requests
from torchsplit_core.placement.request.fleets import Nodes, with_nodes
from torchsplit_core.values import (
    InputFault,
    LinearThroughput,
    PlacementFrontier,
    RooflineThroughput,
    ignore_progress,
)
from torchsplit_core.workspace.archive import export_workspace, import_workspace
from torchsplit_core.workspace.store import Workspace


@pytest.fixture
def two(workspace) -> Workspace:
    """The tiny case with two pipelines at most, placed."""
    place_it(workspace, "tiny", replace(example(), max_replicas=2))
    return workspace


@pytest.fixture
def traced(workspace) -> Workspace:
    """Three GPUs of a decode, placed, with its curve."""
    place_it(workspace, "tiny", example())
    placement_frontier_job(workspace, RequestParameters("tiny"), ignore_progress)
    return workspace


def table(page: AppTest, column: str) -> Any:
    return next(element.value for element in page.dataframe if column in element.value)


def test_several_pipelines_are_summed_listed_and_shown_one_by_one(page, two):
    opened, outcome = page("place", two), two.get("placement", "tiny")
    assert len(outcome.replicas) == 2 and outcome.throughput > 301.784
    shown = metrics(opened)
    assert shown["Pipelines"] == "2" and shown["Throughput"] == f"{outcome.throughput:.3g} tokens/s"
    assert "Bounded by" not in shown and shown["GPUs used"].startswith(
        f"{outcome_tables.gpus_used(outcome)} of"
    )
    listed = table(opened, "pipeline")
    assert list(listed["tokens/s"]) == [replica.throughput for replica in outcome.replicas]
    assert sum(listed["tokens/s"]) == pytest.approx(outcome.throughput)
    chosen = field(opened, "selectbox", "Show pipeline")
    first = list(table(opened, "layers")["GPUs"])
    chosen.set_value(1).run()
    assert list(table(opened, "layers")["GPUs"]) != first
    assert list(table(opened, "layers")["GPUs"]) == [
        ", ".join(map(str, part.gpu_ids)) for part in outcome.replicas[1].segments
    ]


def test_each_of_several_pipelines_has_its_colour_over_the_fleet(two):
    request, outcome = two.get("placement_request", "tiny"), two.get("placement", "tiny")
    cells = [one for one in ET.fromstring(topology_html(outcome, request)).iter() if one.get("data-gpu")]
    for number_, replica in enumerate(outcome.replicas):
        for part in replica.segments:
            for gpu in part.gpu_ids:
                cell = next(cell for cell in cells if cell.get("data-gpu") == str(gpu))
                assert cell.find("rect").get("stroke") == colour_of(number_)  # type: ignore[union-attr]
                assert f"pipeline {number_ + 1}, segment" in (cell.findtext("title") or "")


def test_more_pipelines_are_tried_at_once(page, workspace):
    place_it(workspace, "tiny", example())
    opened = page("place", workspace)
    number(opened, "Pipelines at once, at most").set_value(2).run()
    assert "Tried, not kept: pipelines 1 → 2" in said(opened) and metrics(opened)["Pipelines"] == "2"
    assert workspace.get("placement_request", "tiny").max_replicas == 1


def test_a_curve_is_asked_for_and_goes_with_its_request(page, workspace, started):
    place_it(workspace, "tiny", example())
    press(page("place", workspace), "Trace the curve")
    assert started == [(PLACEMENT_FRONTIER, RequestParameters("tiny"))]
    placement_frontier_job(workspace, RequestParameters("tiny"), ignore_progress)
    assert placements.curve_of(workspace, PLACEMENT.load(workspace, "tiny")) is not None
    copied = import_workspace(workspace.store, export_workspace(workspace))
    assert placements.curve_of(copied, PLACEMENT.load(copied, "tiny")) is not None
    for changed in (workspace, copied):
        changed.put("placement_request", "tiny", replace(example(), communication_efficiency=0.5))
        assert placements.curve_of(changed, PLACEMENT.load(changed, "tiny")) is None
    PLACEMENT.forget(workspace, "tiny")
    assert not workspace.artifacts("placement_frontier")


def test_a_point_of_the_curve_is_a_pipeline(page, traced):
    opened, curve = page("place", traced), traced.get("placement_frontier", "tiny")
    listed = table(opened, "none below, ms")
    assert list(listed["tokens/s"]) == [point.throughput for point in curve.points]
    assert list(listed["ms of a pass"]) == [1e3 * point.latency_s for point in curve.points]
    assert "This is the pipeline above" in said(opened)
    assert "Computed from estimated speeds, untested on hardware" in said(opened)
    for point in curve.points:
        alone = placements_curve.as_outcome(curve, point)
        assert not list(violations(example(), alone))


def test_what_is_not_proven_is_drawn_hollow_down_to_its_bound():
    steps = [
        placements_curve.FrontierDot(0, 10.0, 5.0, 5.0, True, 1),
        placements_curve.FrontierDot(1, 20.0, 9.0, 7.0, False, 2, chosen=True),
    ]
    _, proven, open_ = drawn(steps, "ms", "tokens/s", "tokens/s", dark=False).data
    assert list(proven.x) == [10.0] and proven.marker.symbol == "circle" and proven.error_y.array is None
    assert open_.marker.symbol == "circle-open" and list(open_.error_y.arrayminus) == [2.0]
    assert open_.customdata[0][0] == 1 and open_.marker.size[0] > proven.marker.size[0]


def test_a_curve_without_points_says_why(page, workspace):
    place_it(workspace, "tiny", example())
    stored = PLACEMENT.load(workspace, "tiny")
    workspace.put("placement_frontier", "tiny", PlacementFrontier("timeout", message="No time was left."))
    workspace.set_setting("placement curve tiny answers", stored.sha256)
    opened = page("place", workspace)
    assert "No time was left." in said(opened)
    assert any(button.label == "Trace the curve" for button in opened.button)


def test_ways_are_compared_in_a_job_and_shown_for_this_very_request(page, workspace, started):
    place_it(workspace, "tiny", example())
    press(page("place", workspace), "Compare the ways to divide")
    ((name, parameters),) = started
    assert name == DIVISIONS
    record = workspace.add_job("Compare tiny", name, to_stored(name, parameters))
    result = ways_job(workspace, parameters, ignore_progress)
    runner._write(workspace.store, record.id, {"state": "done", "result": result})
    listed = table(page("place", workspace), "proof")
    assert list(listed["tokens/s"]) == [
        pytest.approx(217.52), pytest.approx(301.784), pytest.approx(301.784), pytest.approx(301.784),
    ]  # fmt: skip
    assert list(listed["solver"])[:2] == ["one GPU", "counts of GPUs only"]
    assert list(listed["on its GPUs"]) == list(listed["tokens/s"])
    assert "has 100 allocations, 420 connections and 1,041 variables" in said(page("place", workspace))
    assert set(listed["proof"]) == {"proven optimal"}
    workspace.put("placement_request", "tiny", replace(example(), max_gpus_per_segment=3))
    assert comparison.stored_comparison(workspace, PLACEMENT.load(workspace, "tiny")) == []
    with pytest.raises(InputFault, match="Compare the ways again"):
        ways_job(workspace, parameters, ignore_progress)


def test_the_ways_differ_in_the_division_alone():
    request = replace(example(), max_gpus_per_segment=3, same_type_segments=True)
    divisions = division_requests(request)
    assert [(way.max_gpus_per_segment, way.split) for _, way in divisions] == [
        (1, "equal"), (3, "equal"), (3, "proportional"),
    ]  # fmt: skip
    for _, way in divisions:
        assert replace(way, max_gpus_per_segment=3, split="equal", solver=request.solver) == request
    assert len(division_requests(replace(request, max_gpus_per_segment=1))) == 1


def test_added_nodes_have_links_of_their_own():
    more = with_nodes(
        example(), Nodes(2, 2, "V100"), memory_gib=32.0, inside_gib_per_s=300.0, network_gib_per_s=12.5
    )
    assert [gpu.id for gpu in more.gpus[4:]] == ["node0/gpu0", "node0/gpu1", "node1/gpu0", "node1/gpu1"]
    assert more.bandwidth_gib_per_s[4] == (12.5, 12.5, 12.5, 12.5, 0.0, 300.0, 12.5, 12.5)
    assert more.bandwidth_gib_per_s[0] == (*example().bandwidth_gib_per_s[0], *(12.5,) * 4)
    assert all(len(row) == 8 for row in more.bandwidth_gib_per_s)
    again = with_nodes(more, Nodes(1, 1, "V100"), memory_gib=1.0, inside_gib_per_s=1.0, network_gib_per_s=1.0)
    assert again.gpus[-1].id == "node2/gpu0"
    with pytest.raises(InputFault, match="more than the 4096"):
        with_nodes(more, Nodes(4096, 1, "V100"), memory_gib=1.0, inside_gib_per_s=1.0, network_gib_per_s=1.0)


def test_another_node_is_tried_at_once(page, workspace):
    place_it(workspace, "tiny", replace(example(), max_gpus_per_segment=4))
    opened = page("place", workspace)
    before = metrics(opened)["GPUs used"]
    number(opened, "Nodes").set_value(1).run()
    assert "Tried, not kept: 4 GPUs more" in said(opened)
    assert metrics(opened)["GPUs used"].endswith("of 8") and before.endswith("of 4")
    assert len(workspace.get("placement_request", "tiny").gpus) == 4


def test_a_type_without_figures_needs_them(page, workspace):
    speeds = example().throughput
    assert isinstance(speeds, LinearThroughput)
    known = LinearThroughput({**speeds.coefficients, "X9": speeds.coefficients["A100"]})
    place_it(workspace, "tiny", replace(example(), throughput=known))
    opened = page("place", workspace)
    field(opened, "selectbox", "Type").set_value("X9").run()
    number(opened, "Nodes").set_value(1).run()
    assert "Add nodes: memory" in said(opened)
    number(opened, "Memory of each, GiB").set_value(40.0).run()
    assert "Add nodes: links inside" in said(opened)
    number(opened, "Inside the node, GB/s").set_value(40.0).run()
    assert "Tried, not kept: 4 GPUs more" in said(opened)


def test_types_are_those_that_the_speeds_know():
    assert nodes.types_of(example())[:2] == ["A100", "V100"]
    assert set(nodes.types_of(example())) == set(example().throughput.coefficients)  # type: ignore[union-attr]
    roofline = replace(example(), throughput=RooflineThroughput("decode"))
    assert "H100-SXM5-80GB" in nodes.types_of(roofline)
    assert nodes.memory_of(example(), "A100") == 80.0 and nodes.intra_node_link(example(), "A100") == 400.0
    assert nodes.slowest_link(example()) == 200.0


@pytest.mark.parametrize(
    ("phase", "head"), [("decode", "Time per token"), ("prefill", "Time to first token")]
)
def test_the_time_of_a_pass_has_the_name_of_its_phase(phase, head):
    request = replace(example(), throughput=RooflineThroughput(phase))
    assert outcome_tables.latency_labels(request)[0] == head
    assert outcome_tables.latency_labels(example())[0] == "Time of a batch"
