"""A tiny decoder to train, of tokens in a row: what tensors, sequences and experts divide.

`client` has plans that name every module; `unnamed` leaves norms of the layers out of them, `masked` is no
decoder: it attends to what its mask allows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, WIDTH, HEADS, TOKENS, SAMPLES = 20, 8, 2, 8, 44


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary positions of batch × heads × tokens × width."""
    left, right = x.chunk(2, dim=-1)
    turns = torch.outer(positions, 100.0 ** -torch.arange(left.shape[-1]))
    cos, sin = turns.cos(), turns.sin()
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        query, key = rotate(query, positions), rotate(key, positions)
        mixed = F.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None)
        return self.out(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(x)))


class Experts(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(count, WIDTH, WIDTH) / 3)
        self.down = nn.Parameter(torch.randn(count, WIDTH, WIDTH) / 3)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        parts = enumerate(rows.split(counts.tolist()))
        return torch.cat([torch.tanh(part @ self.up[number]) @ self.down[number] for number, part in parts])


class Mixture(nn.Module):
    """Each token goes to the best two of four experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 4), Experts(4)

    def forward(self, x: Tensor) -> Tensor:
        scores, chosen = self.router(x.flatten(0, 1)).topk(2)
        order = chosen.flatten().argsort(stable=True)
        results = self.experts(x.flatten(0, 1)[order // 2], F.one_hot(chosen.flatten(), 4).sum(0))
        return (
            (results[order.argsort()].unflatten(0, (-1, 2)) * scores.softmax(-1)[..., None]).sum(1).view_as(x)
        )


class Layer(nn.Module):
    def __init__(self, *, mixture: bool) -> None:
        super().__init__()
        self.attention_norm, self.feed_norm = nn.RMSNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.feed_forward = Attention(), Mixture() if mixture else FeedForward()

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), positions, mask)
        return x + self.feed_forward(self.feed_norm(x))


class Decoder(nn.Module):
    """Scores of every next token; `masked`: attention to all tokens but those that are 0."""

    def __init__(self, *, masked: bool = False, mixture: bool = False) -> None:
        super().__init__()
        self.masked = masked
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer(mixture=mixture) for _ in range(2))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        if positions is None:
            positions = torch.arange(ids.shape[1])
        x = self.words(ids)
        mask = (ids != 0)[:, None, None, :] if self.masked else None
        for layer in self.layers:
            x = layer(x, positions, mask)
        return self.head(self.norm(x))


class Data:
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[tuple[Tensor], Tensor]:
        words = torch.randint(WORDS, (TOKENS + 1,), generator=torch.Generator().manual_seed(index))
        return (words[:-1],), words[1:]


class Client:
    """A TrainClient."""

    tensor_plan: ClassVar = {
        "words": "scatter",
        "layers.*.attention_norm": "sequence",
        "layers.*.attention": "gather",
        "layers.*.attention.query": "colwise",
        "layers.*.attention.key": "colwise",
        "layers.*.attention.value": "colwise",
        "layers.*.attention.out": "rowwise",
        "layers.*.feed_norm": "sequence",
        "layers.*.feed_forward.up": "colwise",
        "layers.*.feed_forward.down": "rowwise",
        "norm": "sequence",
        "head": "gather",
    }
    context_plan: ClassVar[dict[str, Any]] = {"inputs": (1,), "targets": (1,), "positions": "positions"}

    def get_model(self) -> nn.Module:
        torch.manual_seed(3)
        return Decoder()

    def get_dataset(self) -> Data:
        return Data()

    def get_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def get_optimizer(self, parameters: Iterable[nn.Parameter], kind: str) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-2)


class Unnamed(Client):
    """A client whose plan is wrong."""

    tensor_plan = {name: style for name, style in Client.tensor_plan.items() if name != "layers.*.feed_norm"}


class Masked(Client):
    def get_model(self) -> nn.Module:
        torch.manual_seed(3)
        return Decoder(masked=True)


class MixtureClient(Client):
    expert_plan = ("layers.*.feed_forward.experts",)

    def get_model(self) -> nn.Module:
        torch.manual_seed(3)
        return Decoder(mixture=True)


class Misnamed(MixtureClient):
    expert_plan = ("layers.*.experts",)


client, unnamed, masked, mixture, misnamed = Client(), Unnamed(), Masked(), MixtureClient(), Misnamed()
