"""The software that strategies are reckoned for."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.strategy.cost_model.estimate import GENERIC

SOFTWARE = replace(GENERIC, selective="matmuls", sharded_masters=False)
"""Today's PyTorch: fused attention, compiled layers. Its selective recomputation does half of the products and all
that is element-wise again (torchtitan's); with fused attention Megatron's, of the scores, would free nothing. ZeRO-1 is
ZeroRedundancyOptimizer under autocast, as runs and exported files have it."""
