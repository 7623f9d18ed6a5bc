"""The software that strategies are estimated for."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.strategy.cost_model.estimate import GENERIC
from torchsplit_core.values.training import ParallelConfig, TrainingSoftware

SOFTWARE = replace(GENERIC, selective="matmuls", sharded_masters=False)
"""Today's PyTorch: fused attention, compiled layers. Its selective recomputation does half of the products and all
that is element-wise again (torchtitan's); with fused attention Megatron's, of the scores, would free nothing. ZeRO-1 is
ZeroRedundancyOptimizer under autocast, as runs and exported files have it."""
EAGER = replace(SOFTWARE, compiled=False)
"""The same without a compiler: host time and element-wise traffic by `host_eager_s` and `unfused_factor` of
data/constants.json, which were fitted to published runs without one."""


def compiles_layers(choices: ParallelConfig, experts: int) -> bool:
    """Whether an exported file compiles its layers, of a decoder with so many experts a layer.

    torch 2.13 fails in the backward pass of compiled layers with tensor-parallel products, or computes other gradients
    under fully_shard. Experts get a different number of tokens in every step, and would be compiled again.
    """
    return choices.tensor == experts == 1


def software_of(choices: ParallelConfig, experts: int, *, host: bool) -> TrainingSoftware:
    """What a step by these choices is estimated for: `EAGER` where a file does not compile its layers.

    Of cores (`host`) always the compiled one, though a file compiles there nothing: the constants of eager layers are
    those of hosts that start kernels on GPUs.
    """
    return SOFTWARE if host or compiles_layers(choices, experts) else EAGER
