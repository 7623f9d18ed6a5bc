"""Estimate the memory of the measured library's models from their published definitions, for its data file.

Run `python -m tools.write_library_memory` with torchvision 0.28 installed in addition to the requirements; the product
does not need it. The study measured no memory and does not name the models' definitions, so vision models are those of
torchvision, at the image size they were made for, and BERT is BERT-large with 128 tokens, the larger common size.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

from torchsplit_core.graph.serialization import graph_from_dict
from torchsplit_core.profiling.memory import estimate_memory
from torchsplit_core.tracing.export import describe_program, export_program

TABLE = Path(__file__).parents[1] / "torchsplit_core" / "profiling" / "data" / "library_memory.csv"
COLUMNS = ("model", "weight_bytes", "working_bytes_at_1", "working_bytes_at_128")
SIDE, INCEPTION_SIDE = 224, 299
"""Side in pixels of the images for which the models were published."""
TOKENS = 128

Inputs = Callable[[int], tuple[torch.Tensor, ...]]


class Hidden(torch.nn.Module):
    """BERT-large with random weights, from token ids to hidden states."""

    def __init__(self) -> None:
        super().__init__()
        large = transformers.BertConfig(
            hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
        )
        self.bert = transformers.BertModel(large)

    def forward(self, ids: torch.Tensor) -> Any:
        """Token ids [batch, tokens] → hidden states [batch, tokens, 1024]."""
        return self.bert(input_ids=ids).last_hidden_state


def definitions() -> Iterator[tuple[str, torch.nn.Module, Inputs]]:
    """For each model its name in the library, the module, and its inputs by batch size."""
    # Without its compiled operators torchvision fails to register their shapes; the models here do not use them.
    registers, torch.library.register_fake = torch.library.register_fake, lambda *a, **k: lambda f: f
    from torchvision import models

    torch.library.register_fake = registers
    yield "bert", Hidden(), lambda batch: (torch.zeros(batch, TOKENS, dtype=torch.long),)
    for name in ("densenet121", "densenet169", "densenet201"):
        yield name, getattr(models, name)(), images(SIDE)
    yield (
        "inceptionv3",
        models.inception_v3(aux_logits=False, init_weights=False),
        images(INCEPTION_SIDE),
    )
    yield "mobilenetv2", models.mobilenet_v2(), images(SIDE)
    for name in ("resnet101", "resnet152", "resnet50", "vgg16", "vgg19"):
        yield name, getattr(models, name)(), images(SIDE)


def images(side: int) -> Inputs:
    """Batches of square images of three channels."""
    return lambda batch: (torch.zeros(batch, 3, side, side),)


def main() -> None:
    """Write the table."""
    rows = []
    for name, model, inputs in definitions():
        program = export_program(model.eval(), inputs(2), {}, (inputs(3), {}))
        graph = graph_from_dict(describe_program(program, 2))
        one, many = estimate_memory(graph, 1), estimate_memory(graph, 128)
        weights = one.weight_bytes
        rows.append((name, weights, one.peak_bytes - weights, many.peak_bytes - weights))
        print(*rows[-1], file=sys.stderr)
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
