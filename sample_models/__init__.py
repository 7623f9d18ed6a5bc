"""Small real models in plain PyTorch to try TorchSplit with; their random weights come from a fixed seed.

`load("bert", "large")` gives a `SplitClient`. torch is imported only when a model is loaded.
To add a model: one file with a subclass of `SampleClient`, one entry in `registry.SAMPLES`.
"""

from __future__ import annotations

import importlib

from sample_models.registry import SAMPLES, Sample
from torchsplit_core.values import InputFault, SplitClient, quoted, suggestion

__all__ = ["SAMPLES", "Sample", "find", "load"]


def find(name: str, size: str = "small") -> Sample:
    """Look a sample up without loading it. Raises InputFault for an unknown name or size."""
    found = next((sample for sample in SAMPLES if sample.name == name), None)
    if found is None:
        raise InputFault(
            "",
            f"unknown sample {quoted(name)}",
            suggestion(name, (sample.name for sample in SAMPLES), "samples"),
        )
    if size not in found.sizes:
        raise InputFault(
            f"sample {name}", f"has no size {quoted(size)}", suggestion(size, found.sizes, "sizes")
        )
    return found


def load(name: str, size: str = "small", seed: int = 0) -> SplitClient:
    """The client of the sample `name` in that `size`; equal seeds give equal weights. Raises InputFault as `find`."""
    found = find(name, size)
    module = importlib.import_module(f"sample_models.{found.module}")
    client: SplitClient = getattr(module, found.client)(size, seed)
    return client
