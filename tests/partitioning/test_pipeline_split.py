"""What the comparison with torch's own splitting rests on: its stages in our operations, and the loads of both."""

from dataclasses import replace

import pytest

# The benchmarks are scripts of the repository, no installed package.
from benchmarks.pipeline_split import blocks, even_operations, largest_load_ms, matched, spread, torch_split
from tests.support.partitioning.parts import graph_of, sample_program
from tests.support.partitioning.profiles import GRAPH, even_profile, row
from torchsplit_core.graph import TorchGraph
from torchsplit_core.model_source import load_client, open_model
from torchsplit_core.partitioning import PartitionProvider
from torchsplit_core.values import GraphNode

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def bert() -> TorchGraph:
    return graph_of(sample_program("bert")[2])


@pytest.mark.parametrize("count", [2, 3])
def test_torch_splits_before_the_blocks_and_every_operation_has_its_stage(bert, count):
    """Two blocks for two stages; for three, torch splits inside the blocks."""
    split = torch_split("sample:bert", bert, count)
    assert len(split.before) == count - 1 and not split.refused
    assert count > 2 or split.before == ("encoder.layer.1",)
    listed = [name for stage in split.stages for name in stage]
    assert sorted(listed) == sorted(n.id for n in bert.nodes if n.kind in ("op", "input"))
    ops = [op.id for op in bert.ops]
    home = {name: i for i, stage in enumerate(split.stages) for name in stage}
    stages = [home[name] for name in ops]
    assert stages == sorted(stages) and set(stages) == set(range(count))
    # Each stage but the first begins with the first operation of the module it was split before.
    module = {op.id: op.module for op in bert.ops}
    for stage, name in enumerate(split.before, start=1):
        inside = [place for place, op in enumerate(ops) if f"{module[op]}.".startswith(f"{name}.")]
        assert stages.index(stage) == inside[0]


def test_blocks_are_made_finer_until_there_are_enough(bert):
    model = open_model(load_client("sample:bert"))
    assert blocks(model, bert, 2) == ["encoder.layer.0", "encoder.layer.1"]
    finer = blocks(model, bert, 3)
    assert len(finer) > 3 and all(name.startswith(("encoder.layer.0.", "encoder.layer.1.")) for name in finer)
    assert blocks(model, bert, 1000) == []
    assert spread(list("abcdefgh"), 4) == ("c", "e", "g") and spread(list("abc"), 2) == ("c",)


def test_our_further_operations_go_with_the_one_before_and_strangers_are_refused():
    nodes = (
        GraphNode("x", "input"),
        GraphNode("late", "input"),
        GraphNode("mm", "op", target="aten.mm.default", inputs=("x",)),
        GraphNode("slice", "op", target="aten.slice.Tensor", inputs=("mm",)),
        GraphNode("pick", "op", target="_operator.getitem", inputs=("slice",)),
        GraphNode("add", "op", target="aten.add.Tensor", inputs=("pick", "late")),
        GraphNode("output", "output", inputs=("add",)),
    )
    stages = [["aten.mm.default"], ["getitem", "aten.add.Tensor"]]
    assert matched(TorchGraph(nodes), stages) == (("x", "mm", "slice"), ("late", "pick", "add"))
    with pytest.raises(ValueError, match=r"operation 2.*aten\.exp"):
        matched(TorchGraph(nodes), [["aten.mm.default", "getitem"], ["aten.exp.default"]])


@pytest.mark.parametrize("link", [None, 1e-6])
def test_both_sides_are_charged_by_the_contract(link):
    provider = PartitionProvider(GRAPH, even_profile(GRAPH, replace(row(), latency_ms=17.0)))
    request = provider.request(3, 1, link)
    best = provider.solve(request).candidates[0]
    assert largest_load_ms(request, best.stages) == pytest.approx(best.max_load_ms)
    even = even_operations(GRAPH, 3)
    assert [sum(1 for name in stage if name not in ("x", "mask")) for stage in even] == [6, 6, 5]
    assert largest_load_ms(request, even) >= best.max_load_ms
