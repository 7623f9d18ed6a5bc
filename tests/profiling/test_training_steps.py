"""Training steps of a model itself: measured, tracked by torch, and beside them what its graph says."""

import pytest

from torchsplit_core.profiling.training_step.measurement import measure_step, track_peak
from torchsplit_core.strategy.cost_model.interval import unseen
from torchsplit_core.strategy.graph_model.model import GraphCostModel
from torchsplit_core.strategy.graph_model.step import GraphStepModel
from torchsplit_core.strategy.search.machines import read_fleet
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.request import StrategyNodes
from torchsplit_core.values.training import ParallelConfig, Shard, TrainingJob
from torchsplit_core.workflow import trace

pytestmark = pytest.mark.torch
BATCH = 16
BLOCKS = ("encoder.layer.0", "encoder.layer.1")


@pytest.fixture(scope="module")
def bert() -> GraphCostModel:
    return GraphCostModel(trace("sample:bert"))


def reckoned(model: GraphCostModel, shards: int = 1, shard: Shard = "none", recompute: str = "none") -> float:
    """Bytes of tensors at the peak by the graph."""
    (machine,) = read_fleet((StrategyNodes(shards, 1, "CPU-2c"),), "fp32")
    step = GraphStepModel(model, machine, TrainingJob(BATCH * shards, "fp32"), unseen())
    choices = ParallelConfig(data=shards, micro_batch=BATCH, shard=shard, recompute=recompute)  # type: ignore[arg-type]
    memory = step.estimate(choices).memory
    return memory.total - memory.reserve


def test_a_step_is_measured_and_its_peak_is_what_torch_tracks_and_the_graph_says(bert):
    measured = measure_step("sample:bert", BATCH, steps=1)
    assert measured.seconds > 0
    assert track_peak("sample:bert", BATCH) == pytest.approx(measured.peak_bytes, rel=0.05)
    assert reckoned(bert) == pytest.approx(measured.peak_bytes, rel=0.15)


def test_shards_are_followed_on_tensors_without_memory(bert):
    tracked = track_peak("sample:bert", BATCH, shards=4, blocks=BLOCKS)
    assert reckoned(bert, 4, "fsdp") == pytest.approx(tracked, rel=0.25)
    assert track_peak("sample:bert", BATCH, shards=4, blocks=BLOCKS, recompute=True) < tracked


def test_a_file_that_nobody_trusts_is_not_trained(tmp_path):
    with pytest.raises(InputFault):
        measure_step(f"{tmp_path}/model.py:Client", 1)
