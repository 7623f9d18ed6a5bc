"""Runs the parts of a model in order, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export.passes import move_to_device_pass

from torchsplit_core.stages.export_folder import open_manifest, open_part
from torchsplit_core.stages.signature import bind_arguments, unflatten_result
from torchsplit_core.values import StageManifest, StagePart


class LoadedStage:
    """A loaded part, called with values by name.

    On a GPU (untested on hardware) inputs and outputs are tensors on the host.
    """

    def __init__(self, directory: str | Path, part: StagePart, device: str = "cpu") -> None:
        """Load the part, which executes it. Raises InputFault if the file is not the one that was written."""
        self.part, self.device = part, device
        with open_part(directory, part) as stream:
            program = torch.export.load(stream)
        if device != "cpu":
            program = move_to_device_pass(program, device)
        self._module = program.module(check_guards=False)

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Run the part on the values that it reads."""
        with torch.no_grad():
            outputs = self._module(*(self._to_device(values[value.name]) for value in self.part.inputs))
        if self.device != "cpu":
            outputs = [output.cpu() if isinstance(output, torch.Tensor) else output for output in outputs]
        return dict(zip((value.name for value in self.part.outputs), outputs, strict=True))

    def _to_device(self, value: Any) -> Any:
        return value.to(self.device) if self.device != "cpu" and isinstance(value, torch.Tensor) else value


class StagedModel:
    """A model made of its parts; it is called like the model."""

    def __init__(self, directory: str | Path, manifest: StageManifest) -> None:
        self.manifest = manifest
        self.stages = tuple(LoadedStage(directory, part) for part in manifest.stages)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's result. Raises InputFault for arguments unlike the traced ones."""
        values = bind_arguments(self.manifest, args, kwargs)
        for stage in self.stages:
            values |= stage(values)
        return unflatten_result(self.manifest, values)


def open_stages(directory: str | Path, *, trust: bool = False) -> StagedModel:
    """Load the parts in a folder into this process, which executes them. Raises InputFault as `open_manifest`."""
    return StagedModel(directory, open_manifest(directory, trust=trust))
