"""The options of the partition command, and what it prints."""

import json
from pathlib import Path

import pytest

from tests.support.tracing.here import traced_here
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file, write_file
from torchsplit_core.partitioning import PartitionProvider, cut_behind, pareto_candidates, verify_outcome
from torchsplit_core.values import NodeProfile, PartitionDevices, Profile, ProfileRow
from torchsplit_core.workflow import steps

pytestmark = pytest.mark.torch

SOURCE = "sample:diamond"
LINK = 1e-5


@pytest.fixture(autouse=True)
def _traced_once(profiled, monkeypatch) -> None:
    """The command's own trace is not the subject here, and a child of its own each time costs seconds."""
    monkeypatch.setattr(steps, "trace", lambda *_, **__: read_file(profiled / "g.json")[1])


@pytest.fixture(scope="module")
def profiled(tmp_path_factory) -> Path:
    """A profile of the small diamond in which every operation takes the same time."""
    graph = traced_here(SOURCE)
    rows = tuple(
        ProfileRow("whole", "cpu", None, b, 1, 125.0, 8.0 * b, None, None, None, "measured") for b in (1, 2)
    )
    nodes = tuple(NodeProfile(op.id, 1 / len(graph.ops), op.output_bytes, 0) for op in graph.ops)
    folder = tmp_path_factory.mktemp("profiled")
    write_file(Profile(SOURCE, graph.architecture_hash, {}, rows, nodes), folder / "p.json")
    write_file(graph, folder / "g.json")
    return folder


def test_pareto_writes_the_choice_that_the_core_finds(profiled, tmp_path, capsys):
    told = ["partition", SOURCE, "--profile", str(profiled / "p.json"), "--stages", "3", "--pareto"]
    assert main([*told, "--link", str(LINK), "-o", str(tmp_path / "cuts.json")]) == 0
    found = read_file(tmp_path / "cuts.json", expected="torchsplit.partition")[1]
    provider = PartitionProvider(read_file(profiled / "g.json")[1], read_file(profiled / "p.json")[1])
    same = pareto_candidates(provider, stages=(1, 2, 3), link_gb_per_s=LINK)
    assert found.candidates == same.candidates and len({len(c.stages) for c in found.candidates}) > 1
    assert found.devices == PartitionDevices(3, None, LINK) and found.source == SOURCE
    verify_outcome(provider.request(3, 20, LINK), found)
    assert list(found.candidates[0].times_ms) == [1, 2] and "(slowest stage)" in capsys.readouterr().err


def test_latency_memory_and_unequal_devices_are_asked_by_options(profiled, tmp_path, capsys):
    told = ["partition", SOURCE, "--profile", str(profiled / "p.json"), "-o", str(tmp_path / "cuts.json")]
    assert main([*told, "--objective", "latency", "--time-factors", "4,1", "--memory", "1"]) == 0
    found = read_file(tmp_path / "cuts.json")[1]
    assert found.devices == PartitionDevices(2, 2**30, None, (4.0, 1.0)) and found.objective == "latency"
    # Everything on the fast device is the least time of one batch.
    assert found.candidates[0].devices == (1,) and found.candidates[0].latency_ms == pytest.approx(16.0)
    assert "(one batch through all stages)" in capsys.readouterr().err
    assert main([*told, "--memory", "1e-9"]) == 3
    assert read_file(tmp_path / "cuts.json")[1].status == "infeasible"
    assert "infeasible: 0 candidates" in capsys.readouterr().err


def test_a_cut_of_ones_own_stands_beside_the_bound_of_the_best(profiled, tmp_path, capsys):
    provider = PartitionProvider(read_file(profiled / "g.json")[1], read_file(profiled / "p.json")[1])
    value = provider.regions.cut_points[1]
    told = ["partition", SOURCE, "--profile", str(profiled / "p.json"), "-o", str(tmp_path / "own.json")]
    assert main([*told, "--behind", value]) == 0
    found = read_file(tmp_path / "own.json")[1]
    best = provider.solve(provider.request(2, 1))
    assert found.candidates == (cut_behind(provider, [value]),) and found.bound_ms == best.bound_ms
    own = found.candidates[0].max_load_ms
    assert found.status == "feasible" and found.gap == pytest.approx((own - best.bound_ms) / own)
    assert "above the best possible" in capsys.readouterr().err
    assert main([*told, "--behind", "gone"]) == 2 and "cut behind" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "match"), [
    (("--time-factors", "1"), "--time-factors"),
    (("--time-factors", "1,a"), "--time-factors"),
    (("--time-factors", "1,-2"), "--time-factors"),
    (("--time-factors", "1,nan"), "--time-factors"),
    (("--memory", "0"), "--memory"),
    (("--memory", "nan"), "--memory"),
    (("--stages", "0"), "--stages"),
    (("--candidate", "1"), "--candidate"),
    (("--behind", "relu", "--pareto"), "--behind"),
    (("--behind", "relu", "--memory", "1"), "--behind"),
])  # fmt: skip
def test_false_options_are_one_message(options, match, profiled, capsys):
    assert main(["partition", SOURCE, "--profile", str(profiled / "p.json"), *options]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("torchsplit: ") and match in printed.err and printed.out == ""


@pytest.mark.parametrize(
    "option", [("--objective", "latency"), ("--memory", "1"), ("--time-factors", "1,1"), ("--pareto",)]
)
def test_what_a_request_says_itself_is_no_option_beside_it(option, tmp_path, stderr_of):
    request = {"format": "torchsplit.partition_request", "version": 1, "edges": []}
    request |= {"nodes": [{"id": "a", "time_ms": 1.0}], "devices": {"count": 1}}
    (tmp_path / "r.json").write_text(json.dumps(request))
    assert option[0] in stderr_of("partition", tmp_path / "r.json", *option)
