"""The curve as a file, on the command line, as a job, and what its check refuses."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app.session import dropped_files
from app.workspace.page import KIND_WORDS
from tests.support.placement.requests import tiny
from torchsplit_core import workflow
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file, read_text, write_file, write_text
from torchsplit_core.jobs.job_kinds import RequestParameters
from torchsplit_core.jobs.place import placement_frontier_job
from torchsplit_core.placement.frontier import frontier, frontier_violations, verify_frontier
from torchsplit_core.values import (
    InputFault,
    InternalFault,
    PlacementFrontier,
    RooflineGpu,
    RooflineThroughput,
    ignore_progress,
)
from torchsplit_core.workspace.archive import export_workspace, import_workspace
from torchsplit_core.workspace.store import Store

REQUEST = tiny(
    1,
    model=replace(tiny().model, layers=6, layer_weight_gib=0.5),
    throughput=RooflineThroughput(
        "decode", gpus={"A100": RooflineGpu(300.0, 2000.0), "V100": RooflineGpu(125.0, 900.0)}
    ),
)
"""One A100 is quickest; two, or all four GPUs, have more throughput and slower passes."""

Change = Callable[[PlacementFrontier], PlacementFrontier]


@pytest.fixture(scope="module")
def curve() -> PlacementFrontier:
    found = frontier(REQUEST)
    assert len(found.points) >= 2 and found.complete
    return found


def on(number: int, **changes: Any) -> Change:
    """A point changed."""

    def change(curve):
        points = list(curve.points)
        points[number] = replace(points[number], **changes)
        return replace(curve, points=tuple(points))

    return change


def told(**changes: Any) -> Change:
    return lambda curve: replace(curve, **changes)


@pytest.mark.parametrize(("change", "said"), [
    (on(0, throughput=1.0), "point 0: its throughput is"),
    (on(0, latency_s=1.0, latency_bound_s=1.0), "point 0: a pass takes"),
    (on(0, links=(), segments=()), "point 0: status feasible without segments"),
    (on(0, latency_bound_s=9.0), "below its bound"),
    (on(0, latency_bound_s=0.0), "is told proven True"),
    (on(-1, proven=False), "is told proven False"),
    (lambda curve: replace(curve, points=curve.points[::-1]), "out of order"),
    (lambda curve: replace(curve, points=(curve.points[0], *curve.points)), "out of order"),
    (told(throughput_bound=1.0), "is below the throughput"),
    (told(throughput_bound=None), "status optimal"),
    (told(throughput_bound=1e9), "status optimal"),
    (told(status="feasible"), "status feasible, though its points are proven"),
    (told(status="timeout"), "status timeout with"),
    (told(status="infeasible", points=()), "infeasible with a bound"),
    (told(points=()), "with 0 points"),
    (told(units="seed_literal"), "its units are"),
    (told(basis="measured"), "its basis is measured"),
])  # fmt: skip
def test_a_lie_is_found(curve, change, said):
    assert not list(frontier_violations(REQUEST, curve))
    lie = change(curve)
    assert said in "\n".join(frontier_violations(REQUEST, lie))
    with pytest.raises(InternalFault, match="The curve fails its check"):
        verify_frontier(REQUEST, lie)


def test_a_curve_is_read_as_it_was_written(curve):
    assert read_text(write_text(curve)) == ("torchsplit.placement_frontier", curve)
    broken = {**json.loads(write_text(curve)), "bound": 1.0}
    with pytest.raises(InputFault, match="bound"):
        read_text(json.dumps(broken))


def test_the_same_request_has_the_same_curve(curve):
    assert replace(frontier(REQUEST), statistics=curve.statistics) == curve


def test_the_command_writes_the_curve_beside_the_placement(tmp_path, capsys, curve):
    path, out, lines = write_file(REQUEST, tmp_path / "r.json"), tmp_path / "out.json", tmp_path / "c.csv"
    assert main(["place", str(path), "-o", str(out), "--frontier", str(tmp_path / "c.json")]) == 0
    assert f"curve optimal: {len(curve.points)} points, " in capsys.readouterr().err
    assert replace(read_file(tmp_path / "c.json")[1], statistics=curve.statistics) == curve
    assert read_file(out)[1].throughput == curve.points[-1].throughput
    assert main(["place", str(path), "-o", str(out), "--frontier", str(lines)]) == 0
    head, *rows = lines.read_text().splitlines()
    assert head == "throughput,latency_s,latency_bound_s,segments,gpus"
    wanted = [(point.throughput, point.latency_s, point.latency_bound_s) for point in curve.points]
    assert [tuple(float(cell) for cell in row.split(",")[:3]) for row in rows] == wanted
    assert rows[0].split(",")[3:] == ["1", "1"]


def test_the_command_refuses_a_curve_of_the_literal_program_and_tells_why_there_is_none(tmp_path, capsys):
    out, file = tmp_path / "out.json", tmp_path / "c.json"

    def run(request, *more):
        path = write_file(request, tmp_path / "r.json")
        return main(["place", str(path), "-o", str(out), "--frontier", str(file), *more])

    assert run(REQUEST, "--method", "literal") == 2
    assert "solver.method: the published program (literal) has no sequences" in capsys.readouterr().err
    assert not file.exists() and not out.exists()
    cut = tiny(1, model=replace(tiny().model, layer_weight_gib=30.0), bandwidth_gib_per_s=((0.0,) * 4,) * 4)
    assert run(cut) == 3
    assert "curve infeasible: The missing links stand in the way" in capsys.readouterr().err
    found = read_file(file)[1]
    assert found.status == "infeasible" and found.throughput_bound is None and found.complete
    assert run(tiny(1, model=replace(tiny().model, layer_weight_gib=300.0))) == 3
    assert "are missing, and no other set of GPUs holds a layer" in read_file(file)[1].message


def test_the_job_keeps_the_curve_with_the_request_it_answers(tmp_path, curve, monkeypatch):
    workspace = Store(tmp_path).create("curves")
    workspace.put("placement_request", "small", REQUEST)
    texts = []
    found = placement_frontier_job(workspace, RequestParameters("small"), lambda _, text: texts.append(text))
    assert found == {"placement_frontier": "small", "status": "optimal", "points": len(curve.points)}
    stored = workspace.get("placement_frontier", "small")
    assert replace(stored, statistics=curve.statistics) == curve
    (request,) = workspace.artifacts("placement_request")
    assert workspace.setting("placement curve small answers") == request.sha256
    assert any("points from" in text for text in texts)
    copied = import_workspace(workspace.store, export_workspace(workspace))
    assert copied.get("placement_frontier", "small") == stored

    def edited(request, *, progress):
        workspace.put("placement_request", "edited", replace(request, communication_efficiency=0.5))
        return curve

    workspace.put("placement_request", "edited", REQUEST)
    monkeypatch.setattr(workflow, "placement_frontier", edited)
    placement_frontier_job(workspace, RequestParameters("edited"), ignore_progress)
    assert [item.name for item in workspace.artifacts("placement_frontier")] == ["small"]


def test_a_dropped_curve_stands_beside_the_request_it_answers(tmp_path, curve):
    workspace = Store(tmp_path).create("drops")
    workspace.put("placement_request", "other", replace(REQUEST, communication_efficiency=0.5))
    workspace.put("placement_request", "small", replace(REQUEST, max_replicas=2))
    workspace.put("placement_request", "tiny", tiny(2))
    artifact = dropped_files.store_dropped(workspace, "curve.json", write_text(curve).encode())
    assert artifact.kind in KIND_WORDS
    # With one GPU a segment the efficiency of several changes nothing: the first request that it answers.
    assert artifact.name in ("other", "small")
