"""Decoder with a mixture of experts in each layer: each token goes to two of them (Mixtral, Jiang et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sample_models.llama import Llama, LlamaClient, LlamaSize

CHOSEN = 2
"""Experts of a token."""


@dataclass(frozen=True, slots=True)
class MoeSize(LlamaSize):
    """The dimensions of a decoder whose layers have so many experts, each of `feed_forward` filters."""

    experts: int


SMALL = MoeSize(100, 12, 32, 64, 2, 4, 2, 4)
LARGE = MoeSize(32000, 128, 768, 2048, 12, 12, 4, 8)


class Experts(nn.Module):
    """Gated feed-forwards (SwiGLU) in a row, their weights in one tensor each, experts in dimension 0."""

    def __init__(self, size: MoeSize) -> None:
        super().__init__()
        inner, outer = size.width**-0.5, size.feed_forward**-0.5
        self.gate = nn.Parameter(inner * torch.randn(size.experts, size.width, size.feed_forward))
        self.up = nn.Parameter(inner * torch.randn(size.experts, size.width, size.feed_forward))
        self.down = nn.Parameter(outer * torch.randn(size.experts, size.feed_forward, size.width))

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Rows [rows, width] in the order of their experts, `counts` of each expert → as many rows."""
        if torch.compiler.is_exporting() or not self.training:
            # A graph has no sizes that depend on data: traced, each expert computes all rows, and so it is served.
            expert = (torch.arange(rows.shape[0], device=rows.device)[:, None] >= counts.cumsum(0)).sum(1)
            results = torch.zeros_like(rows)
            for number in range(self.gate.shape[0]):
                results = results + self._expert(number, rows) * (expert == number)[:, None]
            return results
        return torch.cat(
            [self._expert(number, part) for number, part in enumerate(rows.split(counts.tolist()))]
        )

    def _expert(self, number: int, rows: Tensor) -> Tensor:
        return (F.silu(rows @ self.gate[number]) * (rows @ self.up[number])) @ self.down[number]


class Mixture(nn.Module):
    """Each token's result is that of its two best experts, weighted by the softmax of their scores."""

    def __init__(self, size: MoeSize) -> None:
        super().__init__()
        self.router = nn.Linear(size.width, size.experts, bias=False)
        self.experts = Experts(size)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        scores, chosen = self.router(tokens).topk(CHOSEN)
        order = chosen.flatten().argsort(stable=True)
        counts = F.one_hot(chosen.flatten(), self.router.out_features).sum(0)
        results = self.experts(tokens[order // CHOSEN], counts)[order.argsort()]
        weighted = results.unflatten(0, (-1, CHOSEN)) * scores.softmax(-1)[..., None]
        return weighted.sum(1).view_as(x)


class MoeClient(LlamaClient):
    """The client: 12 layers of width 768, 8 experts (1.9 GiB of float32 weights), or two of width 32, 4 experts."""

    tensor_plan = {
        name: style for name, style in LlamaClient.tensor_plan.items() if "feed_forward" not in name
    }
    expert_plan = ("layers.*.feed_forward.experts",)

    @property
    def size(self) -> MoeSize:
        return LARGE if self.large else SMALL

    def build(self) -> nn.Module:
        return Llama(self.size, Mixture)
