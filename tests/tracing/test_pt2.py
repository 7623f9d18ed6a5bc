"""An untrusted .pt2 is good for everything but measuring: the same graph, regions, costs, estimates and plan."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import sample_models
from tests.support.tracing.pt2_files import read_file
from torchsplit_core import cli
from torchsplit_core.files import read_file as read_contract
from torchsplit_core.graph import TorchGraph, prepare, region_tree
from torchsplit_core.jobs.job_kinds import TraceParameters, UploadedFile
from torchsplit_core.jobs.trace import trace_job
from torchsplit_core.profiling import estimate_rows, estimated_nodes
from torchsplit_core.profiling.flops import node_costs
from torchsplit_core.tracing import hash_model_architecture, trace
from torchsplit_core.tracing.export import export_program
from torchsplit_core.tracing.program_graph import convert_program

SAMPLES = ("bert", "cond", "resnet50")


class Both(NamedTuple):
    """One model twice: as it was exported, and as it is read from the file of that export."""

    exported: TorchGraph
    read: TorchGraph
    path: Path


@pytest.fixture(scope="module", params=[*SAMPLES[:2], pytest.param(SAMPLES[2], marks=pytest.mark.repeated)])
def both(request, tmp_path_factory) -> Both:
    client = sample_models.load(request.param)
    program = export_program(client.get_model(), client.get_example_inputs(2), {})
    path = tmp_path_factory.mktemp("pt2") / f"{request.param}.pt2"
    torch.export.save(program, path)
    exported, read = convert_program(program, 2), read_file(path)
    return Both(
        *(replace(graph, architecture_hash=hash_model_architecture(graph)) for graph in (exported, read)),
        path,
    )


def test_graph_and_architecture_are_equal(both):
    assert both.read.nodes == both.exported.nodes
    assert both.read.subgraphs == both.exported.subgraphs
    assert both.read.architecture_hash == both.exported.architecture_hash


def test_regions_and_cut_points_are_equal(both):
    one, other = (region_tree(prepare(graph)) for graph in (both.read, both.exported))
    assert one.cut_points == other.cut_points
    assert [(r.start, r.end, r.kind, r.ids) for r in one.regions] == [
        (r.start, r.end, r.kind, r.ids) for r in other.regions
    ]


@pytest.mark.parametrize("batch", [1, 2, 32])
def test_flops_and_bytes_are_equal_at_every_batch(batch, both):
    costs = node_costs(both.read, batch)
    assert costs == node_costs(both.exported, batch)
    assert sum(cost.flops for cost in costs) > 0
    assert sum(cost.bytes_read + cost.bytes_written for cost in costs) > 0


def test_estimates_are_equal(both):
    assert estimated_nodes(both.read) == estimated_nodes(both.exported)
    types, batches = ("A100-80GB", "H100-SXM5-80GB"), (1, 8)
    assert estimate_rows(both.read, types, batches) == estimate_rows(both.exported, types, batches)


def test_the_command_line_goes_from_an_untrusted_pt2_to_a_plan(both, tmp_path):
    profile, cuts, request, plan = (str(tmp_path / f"{name}.json") for name in ("p", "c", "r", "o"))
    common = ("--gpu-types", "A100-80GB", "-o", profile)
    assert cli.main(["profile", str(both.path), *common]) == 0
    found = read_contract(profile)[1]
    assert {row.basis for row in found.rows} == {"estimated"}
    assert "not trusted" in found.environment["note"]
    assert found.architecture_hash == both.exported.architecture_hash
    assert {node.id for node in found.nodes} <= {node.id for node in both.exported.ops}
    assert cli.main(["partition", str(both.path), "--profile", profile, "-o", cuts]) == 0
    fleet = ("--gpus", "1xA100-80GB", "--candidates", cuts, "--time-limit", "10", "-o", request)
    assert cli.main(["request", profile, *fleet]) == 0
    assert cli.main(["plan", request, "-o", plan]) == 0
    outcome = read_contract(plan)[1]
    assert outcome.status == "optimal" and outcome.objective.value > 0


@pytest.fixture(scope="module")
def diamond(tmp_path_factory) -> Path:
    client = sample_models.load("diamond")
    path = tmp_path_factory.mktemp("pt2") / "diamond.pt2"
    torch.export.save(export_program(client.get_model(), client.get_example_inputs(2), {}), path)
    return path


@pytest.mark.repeated
def test_a_trusted_pt2_is_measured(diamond, tmp_path):
    out = str(tmp_path / "p.json")
    options = (
        "--device", "cpu", "--batch-sizes", "1,2", "--point-budget", "0.05", "--gpu-types", "A100-80GB",
    )  # fmt: skip
    assert cli.main(["profile", str(diamond), "--trust", *options, "-o", out]) == 0
    found = read_contract(out)[1]
    measured = [row for row in found.rows if row.basis == "measured"]
    assert [(row.gpu_type, row.batch_size) for row in measured] == [("CPU", 1), ("CPU", 2)]
    assert {row.basis for row in found.rows} == {"measured", "estimated"}
    assert found.environment["nodes_basis"] == "measured"
    assert found.architecture_hash == trace(str(diamond)).architecture_hash


def test_sample_path_and_drop_are_one_model(diamond, tmp_path):
    """The three ways in give one graph: what a page's job stores is what the command line writes."""
    from torchsplit_core.workspace.store import Store

    workspace = Store(tmp_path / "store").create("w")
    workspace.put_bytes("upload", "diamond.pt2", diamond.read_bytes())
    for name, file in (("diamond.pt2", UploadedFile("diamond.pt2")), ("sample:diamond", None)):
        trace_job(workspace, TraceParameters(name, file), lambda share, text: None)
    out = str(tmp_path / "g.json")
    assert cli.main(["trace", str(diamond), "-o", out]) == 0
    path, dropped = read_contract(out)[1], workspace.get("graph", "diamond.pt2")
    sample = workspace.get("graph", "sample:diamond")
    assert path == dropped
    assert replace(path, route="") == replace(sample, route="")
