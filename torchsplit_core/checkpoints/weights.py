"""The weights of a checkpoint: gathered from what all ranks wrote, and saved as one safetensors file."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from torchsplit_core.checkpoints.safe_load import SafePlanner, SafeReader
from torchsplit_core.checkpoints.store import Manifest, read_manifest
from torchsplit_core.checkpoints.trained_run import TrainedStep
from torchsplit_core.files import replace_file
from torchsplit_core.values import InputFault, last_cause, quoted, system_reason

_PREFIX = "model."


def read_weights(step: TrainedStep) -> tuple[dict[str, torch.Tensor], Manifest]:
    """Whole weights and buffers on the CPU, by their names in the model, in the precision of the training.

    Also the checkpoint's manifest, to which every file was compared. Reads in this process alone, however many ranks
    wrote. Executes nothing. Raises InputFault for a checkpoint that is damaged or holds more than weights and plain
    values.
    """
    path = step.checkpoint
    manifest = read_manifest(path)
    reader = SafeReader(path)
    state = {
        name: torch.empty(item.size, dtype=item.properties.dtype)
        for name, item in reader.read_metadata().state_dict_metadata.items()
        if name.startswith(_PREFIX) and isinstance(item, TensorStorageMetadata)
    }
    try:
        with warnings.catch_warnings():
            # Loading in one process is intended.
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
            dcp.load(state, storage_reader=reader, planner=SafePlanner(), no_dist=True)
    except CheckpointException as error:
        faults = [failure for failure, _ in error.failures.values()]
        for failure in faults:
            if isinstance(failure, InputFault):
                raise failure from error
        cause = last_cause(faults[0]) if faults else error
        raise InputFault(
            f"checkpoint {path.name}",
            f"cannot be read: {type(cause).__name__}: {cause}",
            "Use another step of the run.",
        ) from error
    return {name.removeprefix(_PREFIX): tensor for name, tensor in state.items()}, manifest


def load_weights(model: torch.nn.Module, step: TrainedStep) -> None:
    """Load a step's weights into the model that the run trained. Raises InputFault if they belong to another model."""
    weights, _ = read_weights(step)
    expected = model.state_dict()
    for name, tensor in expected.items():
        problem = ""
        if name not in weights:
            problem = f"lacks {quoted(name)}"
        elif weights[name].shape != tensor.shape:
            problem = f"has {quoted(name)} of shape {tuple(weights[name].shape)}, not {tuple(tensor.shape)}"
        if problem:
            raise InputFault(
                step.display_name,
                f"is of another model than {step.source} builds now: it {problem}",
                "Restore the code that the run was started with, or train again.",
            )
    if extra := sorted(weights.keys() - expected.keys()):
        raise InputFault(
            step.display_name,
            f"is of another model than {step.source} builds now: that has no {quoted(extra[0])}",
            "Restore the code that the run was started with, or train again.",
        )
    model.load_state_dict(weights)


@dataclass(frozen=True, slots=True)
class WeightsManifest:
    """A weights file's SHA-256, and the run, step and strategy that it comes from.

    `loss` is the loss of the step, None if the log lacks it; `metrics` are the client's on its held-out samples.
    """

    format: str
    version: int
    file: str
    bytes: int
    sha256: str
    parameters: int
    source: str
    run: str
    step: int
    samples_seen: int
    loss: float | None
    metrics: dict[str, float]
    strategy: dict[str, Any]
    precision: str
    optimizer: str
    model_sha256: str
    torch_version: str


def save_weights(step: TrainedStep, target: Path) -> WeightsManifest:
    """Write a step's weights to `target` (safetensors), and their manifest beside it as `FILE.json`.

    Either file is complete or absent. Raises InputFault if the checkpoint cannot be read, the disk has too little room
    or the file cannot be written.
    """
    from safetensors.torch import save_file

    weights, manifest = read_weights(step)
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    partial = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(target.parent).free
        if size > free:
            raise InputFault(
                str(target),
                f"needs {size:,} bytes, and the disk has {free:,}",
                "Free some, or choose another disk by -o.",
            )
        save_file(weights, partial, metadata={"format": "pt"})
        with partial.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        written = partial.stat().st_size
        partial.replace(target)
    except OSError as error:
        raise InputFault(
            str(target), f"cannot be written: {system_reason(error)}", "Choose another place by -o."
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    facts = step.facts
    result = WeightsManifest(
        "torchsplit.weights",
        1,
        target.name,
        written,
        digest,
        sum(tensor.numel() for tensor in weights.values()),
        step.source,
        step.run.name,
        step.step,
        step.step * manifest.global_batch,
        step.loss(),
        step.metrics(),
        dict(facts.get("choices") or {}),
        str(facts.get("precision", "")),
        str(facts.get("optimizer", "")),
        manifest.model_sha256,
        manifest.torch_version,
    )
    replace_file(
        target.with_name(f"{target.name}.json"), json.dumps(asdict(result), indent=1, allow_nan=False) + "\n"
    )
    return result
