"""What a deployment can be refused for is said before any part of a model is written."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.planning.requests import whole_model
from torchsplit_core import stages, tracing, workflow
from torchsplit_core.deployment import WORKLOAD_FORMATS, custom_images, omitted_by
from torchsplit_core.planning import plan
from torchsplit_core.values import FleetEntry, InputFault, PlanOutcome, PlanRequest, Point
from torchsplit_core.workflow.deployments import default_formats


class Begun(Exception):
    """A model is traced or written."""


@pytest.fixture(autouse=True)
def _nothing_is_written(monkeypatch) -> None:
    def begin(*_, **__):
        raise Begun

    monkeypatch.setattr(tracing, "trace", begin)
    monkeypatch.setattr(stages, "export_stages", begin)


def planned(*hosts: str, sources: tuple[str, ...] = ("sample:diamond",)) -> tuple[PlanRequest, PlanOutcome]:
    """A whole model for each source, each on a GPU of a host of its own."""
    points = (Point("A100-80GB", "3g.40gb", 4, 100.0, 40.0, memory_gib=0.1),)
    models = tuple(
        whole_model(f"m{number}", points, demand_rps=100.0 / len(sources), source=source)
        for number, source in enumerate(sources)
    )
    fleet = tuple(FleetEntry("A100-80GB", f"{host}/gpu0") for host in hosts)
    request = PlanRequest(fleet, models)
    return request, plan(request)


def deploy(
    asked: tuple[PlanRequest, PlanOutcome], target: Path, *formats: str, **more: Any
) -> tuple[Path, ...]:
    request, outcome = asked
    return workflow.deploy(outcome, target, formats or None, request=request, **more)


def test_what_is_right_begins(tmp_path):
    """So that the tests below show that it is not begun."""
    with pytest.raises(Begun):
        deploy(planned("node-a"), tmp_path)


def test_formats_that_cannot_name_the_hosts_are_left_out(tmp_path):
    request, outcome = planned("Node_A")
    images = custom_images(request)
    chosen = default_formats(outcome, images)
    assert "compose" in chosen and not {"kubernetes", "slurm"} & set(chosen)
    several = planned("Node_A", "node-b", sources=("sample:diamond", "sample:clip"))
    names = {path.name for path in deploy(several, tmp_path)}
    assert {"README.md", "mig-parted.yaml"} <= names and "compose.yaml" not in names
    for name in WORKLOAD_FORMATS:
        omitted = omitted_by(several[1], name, custom_images(several[0]))
        assert (
            omitted[1] and f"everything, since host 'Node_A' is no node name that {name} takes" in omitted[0]
        )


@pytest.mark.parametrize("name", ["kubernetes", "slurm"])
@pytest.mark.parametrize("host", ["Node_A", "-l=x", "a..b", "a b"])
def test_names_of_hosts(name, host, tmp_path):
    with pytest.raises(InputFault, match="node"):
        deploy(planned(host), tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_sources_of_all_models(tmp_path):
    code = tmp_path / "own.py"
    code.write_text("raise SystemExit")
    for source, word in (
        (f"{code}:client", "not trusted"), ("sample:dimond", "diamond"), ("gone.pt2", "no such"),
    ):  # fmt: skip
        with pytest.raises(InputFault, match=word):
            deploy(planned("a", sources=("sample:diamond", source)), tmp_path / "out")


def test_what_lies_in_the_target(tmp_path):
    (tmp_path / "image").write_text("")
    with pytest.raises(InputFault, match="cannot be written"):
        deploy(planned("a"), tmp_path)
    strange = tmp_path / "out" / "image" / "models" / "m0-whole"
    strange.mkdir(parents=True)
    (strange / "letter.txt").write_text("mine")
    with pytest.raises(InputFault, match=r"letter\.txt"):
        deploy(planned("a"), tmp_path / "out")


def test_slices_that_cannot_exist_together_and_requests_of_another_plan(tmp_path):
    request, outcome = planned("a")
    with pytest.raises(InputFault, match="the plan answers"):
        deploy((replace(request, models=(replace(request.models[0], weight=2.0),)), outcome), tmp_path)
    (gpu,) = outcome.gpus
    twice = replace(outcome, gpus=(replace(gpu, slices=(*gpu.slices, *gpu.slices)),))
    with pytest.raises(InputFault):
        deploy((request, twice), tmp_path)
