"""Models that write in place or keep state."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchsplit_core.model_source import load_client

X, OTHER = torch.randn(2, 4), torch.randn(3, 4)


class Residual(nn.Module):
    """As convolutional networks have it: activations and shortcuts in place."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu_(self.one(x))
        z = self.two(y)
        z += y
        return torch.relu_(z) * 2


class Early(nn.Module):
    """A value is read before and after it is written, and a view of it too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        view = y.view(-1)
        before = y + 1
        y.add_(3)
        after = y.exp()
        return before.sum() + after.sum() + view.sum()


COUNTER = """
import torch
from torch import nn


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("runs", torch.zeros(1))
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x.mul_(2)
        y = self.one(x) + self.runs
        self.runs.add_(1)
        return self.two(torch.relu(y)) * self.runs


class Client:
    batch_sizes = (1, 2)

    def get_model(self):
        return Counter()

    def get_example_inputs(self, batch):
        return (torch.ones(batch, 4),)
"""

"""A model with state that every run changes, that writes its input too."""


def counter(folder: Path) -> tuple[str, Any]:
    """The source of the model and the model itself."""
    (folder / "counter.py").write_text(COUNTER)
    source = f"{folder / 'counter.py'}:Client"
    return source, load_client(source, trust=True).get_model()
