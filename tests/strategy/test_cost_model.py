"""One step: its parts by hand, and what must hold for any sizes."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from torchsplit_core.strategy import calibrated, estimate
from torchsplit_core.strategy.cost_model.constants import constants
from torchsplit_core.strategy.cost_model.estimate import GENERIC
from torchsplit_core.strategy.cost_model.interval import Spread
from torchsplit_core.strategy.cost_model.kernels import Kernels
from torchsplit_core.strategy.cost_model.layers import recompute_shares
from torchsplit_core.strategy.cost_model.memory import in_flight, layer_activation_bytes, step_memory
from torchsplit_core.strategy.cost_model.network import Network
from torchsplit_core.strategy.search.machines import read_fleet
from torchsplit_core.strategy.search.software import SOFTWARE
from torchsplit_core.strategy.table_input.gpu_text import read_machine
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.request import StrategyNodes
from torchsplit_core.values.training import (
    ParallelConfig,
    Precision,
    StepEstimate,
    StepParts,
    TrainingJob,
    TrainingSoftware,
    Transformer,
)
from torchsplit_core.values.units import GIB

GPT3 = Transformer(96, 12288, 96, 96, 49152, 51200, 2048)
LLAMA = Transformer(32, 4096, 32, 8, 14336, 128256, 8192, gated=True, tied_embeddings=False)
DEVICE, CLUSTER = read_machine("A100-80GB")
JOB = TrainingJob(1536)
CHOICES = ParallelConfig(data=16, tensor=8, pipeline=8, micro_batch=1, sequence_parallel=True)


def step(
    choices: ParallelConfig = CHOICES, model: Transformer = GPT3, job: TrainingJob = JOB
) -> StepEstimate:
    return estimate(model, DEVICE, CLUSTER, choices, job)


def test_parameters_of_known_models() -> None:
    assert GPT3.parameters == pytest.approx(175e9, rel=0.01)
    assert LLAMA.parameters == pytest.approx(8.03e9, rel=0.002)


def test_parts_add_up_to_the_step() -> None:
    found = step()
    assert sum(getattr(found.parts_s, part.name) for part in fields(StepParts)) == pytest.approx(
        found.seconds
    )
    assert found.low_s < found.seconds < found.high_s
    assert found.micro_batches == 96


def test_a_large_product_takes_its_operations_over_the_share_of_the_peak() -> None:
    c = constants()
    kernels = Kernels(DEVICE, "bf16", "flash", c)
    operations = 2 * 65536.0**3
    assert kernels.gemm(65536, 65536, 65536) == pytest.approx(
        operations / (312e12 * c.gemm_share_ampere), rel=0.02
    )
    # A product with one column reads its matrix: 2 bytes a number.
    assert kernels.gemm(16384, 1, 16384) >= 2 * 16384**2 / (2039e9 * c.memory_share)


def test_a_processor_makes_products_without_tiles() -> None:
    c = constants()
    host = read_fleet((StrategyNodes(1, 1, "CPU-64c"),), "fp32")[0].device
    taken = Kernels(host, "fp32", "flash", c).gemm(256, 256, 128) - c.launch_s
    assert taken == pytest.approx(2 * 256 * 256 * 128 / (host.single_flops * c.gemm_share_ampere))


def test_an_all_reduce_passes_twice_its_bytes_less_one_part() -> None:
    c = constants()
    network = Network(CLUSTER, c)
    inside = 2 * 7 / 8 * 1e9 / (300e9 * c.inside_share) + 3 * c.inside_latency_s
    assert network.reduce(1e9, 8, 1) == pytest.approx(inside)
    # Two nodes, eight members each: the node's whole rate, 200 GB/s; one member each: an eighth of it.
    whole = 2 * 15 / 16 * 1e9 / (200e9 * c.between_share) + 16 * c.hop_s
    eighth = 2 * 1 / 2 * 1e9 / (25e9 * c.between_share) + 2 * c.hop_s
    assert network.reduce(1e9, 16, 1) == pytest.approx(whole)
    assert network.reduce(1e9, 2, 8) == pytest.approx(eighth)
    assert network.reduce(1e9, 1, 1) == network.gather(1e9, 1, 1) == 0


def test_the_bubble_is_p_minus_one_micro_batches_and_interleaving_divides_it() -> None:
    without_words = replace(GPT3, vocab=8)
    plain, fewer = step(model=without_words), step(replace(CHOICES, interleave=4), without_words)
    busy = plain.parts_s.compute + plain.parts_s.attention + plain.parts_s.memory_bound
    busy += plain.parts_s.host + plain.parts_s.tensor_communication
    assert plain.parts_s.pipeline_bubble / busy == pytest.approx(7 / 96, rel=0.02)
    assert fewer.parts_s.pipeline_bubble / plain.parts_s.pipeline_bubble == pytest.approx(1 / 4, rel=0.05)


def test_stages_that_are_not_equal_wait_for_the_longest() -> None:
    even, odd = replace(GPT3, layers=16), replace(GPT3, layers=17)
    assert step(model=odd).seconds / step(model=even).seconds > 1.3


def test_recomputation_costs_a_forward_pass_at_most() -> None:
    none, full = step(), step(replace(CHOICES, recompute="full"))
    assert 1 < full.parts_s.compute / none.parts_s.compute < 1.34
    again = recompute_shares(
        replace(CHOICES, recompute="selective"), replace(GENERIC, selective="layers", selective_share=0.25)
    )
    assert (again.products, again.attention, again.memory_bound) == (0.25, 0.25, 0.25)


def test_memory_of_states_is_sixteen_to_eighteen_bytes_a_parameter() -> None:
    choices = ParallelConfig()
    found = step_memory(LLAMA, choices, TrainingJob(1), replace(GENERIC, gradient_bytes=2), constants())
    assert (found.weights + found.gradients + found.optimizer) / LLAMA.parameters == pytest.approx(
        16, rel=0.001
    )
    sharded = step_memory(
        LLAMA, replace(choices, data=64, shard="fsdp"), TrainingJob(64), GENERIC, constants()
    )
    held = sharded.weights + sharded.gradients + sharded.optimizer
    assert held == pytest.approx(16 * LLAMA.parameters / 64, rel=0.001)


def test_activations_by_korthikanti() -> None:
    old = TrainingSoftware("megatron-lm", attention="unfused")
    choices = ParallelConfig(tensor=8, micro_batch=1)
    s, h, a, t = 2048, 12288, 96, 8
    assert layer_activation_bytes(GPT3, choices, old) == s * h * (10 + 24 / t + 5 * a * s / (h * t))
    parallel = replace(choices, sequence_parallel=True, recompute="selective")
    assert layer_activation_bytes(GPT3, parallel, old) == s * h * 34 / t


def test_micro_batches_in_flight() -> None:
    assert in_flight(ParallelConfig(pipeline=8), 64) == 8
    assert in_flight(ParallelConfig(pipeline=8), 4) == 4
    assert in_flight(ParallelConfig(pipeline=8, interleave=4), 64) == 8 + 7 / 4


@pytest.mark.parametrize("size", ["sequence", "layers", "vocab"])
def test_more_work_takes_longer_and_more_memory(size: str) -> None:
    more = replace(GPT3, **{size: 2 * getattr(GPT3, size)})
    assert step(model=more).seconds > step().seconds
    assert step(model=more).memory.total > step().memory.total


def test_a_larger_batch_takes_longer_but_less_than_in_proportion() -> None:
    once, twice = step(), step(job=TrainingJob(2 * JOB.global_batch))
    assert 1.5 * once.seconds < twice.seconds < 2 * once.seconds


def test_sharding_saves_memory_and_no_time() -> None:
    kinds = ("none", "zero1", "zero2", "fsdp")
    found = [step(ParallelConfig(data=64, shard=kind), LLAMA, TrainingJob(64)) for kind in kinds]  # type: ignore[arg-type]
    states = [one.memory.weights + one.memory.gradients + one.memory.optimizer for one in found]
    assert states == sorted(states, reverse=True)
    assert found[3].parts_s.sharding_communication > 0 == found[0].parts_s.sharding_communication


@pytest.mark.parametrize(
    ("precision", "weights", "optimizer"), [("bf16", 6.0, 8.0 / 16), ("fp32", 4.0, 8.0 / 16)]
)
def test_zero1_of_a_run_keeps_single_precision_weights_on_every_device(
    precision: Precision, weights: float, optimizer: float
) -> None:
    """As the program has them: under autocast two-byte copies beside them; its optimizer divides its moments alone.

    An 8B model on 16 devices holds 45 GiB of weights on each, not 15.
    """
    job, choices = TrainingJob(64, precision), ParallelConfig(data=16, shard="zero1")
    memory = step_memory(LLAMA, choices, job, SOFTWARE, constants())
    assert memory.weights / LLAMA.parameters == pytest.approx(weights)
    assert memory.optimizer / LLAMA.parameters == pytest.approx(optimizer)
    assert memory.gradients / LLAMA.parameters == pytest.approx(4.0)
    megatron = step_memory(LLAMA, choices, TrainingJob(64), GENERIC, constants())
    assert (megatron.weights, megatron.optimizer) == pytest.approx(
        (2.0 * LLAMA.parameters, 12.0 / 16 * LLAMA.parameters)
    )


def test_a_faster_network_never_hurts() -> None:
    slow = replace(CLUSTER, between_bytes_per_s=CLUSTER.between_bytes_per_s / 10)
    assert estimate(GPT3, DEVICE, slow, CHOICES, JOB).seconds > step().seconds


def test_fits_only_within_the_memory() -> None:
    assert not step(ParallelConfig(data=64), LLAMA, TrainingJob(64)).fits
    small = replace(LLAMA, layers=2, sequence=512)
    assert step(ParallelConfig(), small, TrainingJob(1)).fits
    assert step(ParallelConfig(), small, TrainingJob(1)).memory.total < 80 * GIB


@pytest.mark.parametrize(
    "choices",
    [
        ParallelConfig(tensor=5),
        ParallelConfig(pipeline=97),
        ParallelConfig(data=5),
        ParallelConfig(micro_batch=7),
        ParallelConfig(expert=2),
    ],
)
def test_what_does_not_divide_is_refused(choices: ParallelConfig) -> None:
    with pytest.raises(InputFault):
        step(choices)


def test_known_rows_move_the_estimate_and_narrow_the_interval() -> None:
    spread = Spread(0.1, 0.05, 8)
    nothing, one, three = calibrated((), spread), calibrated((0.2,), spread), calibrated((0.2,) * 3, spread)
    assert nothing.factor == 1
    assert 1 < one.factor < three.factor < 1.2215
    assert nothing.high > one.high > three.high > 1
    found = estimate(GPT3, DEVICE, CLUSTER, CHOICES, JOB, offset=three)
    assert found.seconds == pytest.approx(three.factor * step().seconds)
