"""Measure a finished run on held-out samples, on which no step trained, if its client provides them."""

from __future__ import annotations

import json
import math
import multiprocessing
from collections import defaultdict
from pathlib import Path
from typing import Any

from torchsplit_core.checkpoints.trained_run import VALIDATION
from torchsplit_core.files import replace_file
from torchsplit_core.training.run_folder import RunFolder
from torchsplit_core.values import InputFault, last_cause

BATCH = 64
"""Samples in a forward pass."""


def can_validate(client: Any) -> bool:
    """Whether a client provides held-out samples and metrics to compute on them."""
    return hasattr(client, "get_validation_dataset") and hasattr(client, "get_metrics")


def validate(folder: RunFolder, source: str, trust: bool, step: int) -> None:
    """Measure the model of a step in a separate process; writes the figures to `validation.json` and logs an event.

    A failure is only logged: it does not affect the run's weights.
    """
    # The ranks' fork server has torch and the engine loaded.
    process = multiprocessing.get_context("forkserver").Process(
        target=_measure, args=(folder.path, folder.node, source, trust, step)
    )
    process.start()
    process.join()


def _measure(path: Path, node: str, source: str, trust: bool, step: int) -> None:
    folder = RunFolder(path, node)
    try:
        metrics, samples = _metrics_of(f"{path}@step-{step}", trust)
    except Exception as error:  # noqa: BLE001 - the client's own code; the run is done
        cause = last_cause(error)
        words = str(error) if isinstance(error, InputFault) else f"{type(cause).__name__}: {cause}"
        folder.log_event("validation_failed", words)
        return
    record = {"step": step, "samples": samples, "metrics": metrics, "source": source}
    replace_file(folder.path / VALIDATION, json.dumps(record, allow_nan=False) + "\n")
    figures = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    folder.log_event("validated", f"{figures} on {samples} held-out samples")


def _metrics_of(source: str, trust: bool) -> tuple[dict[str, float], int]:
    """The mean of each metric over all held-out samples, and the number of samples."""
    import torch
    from torch.utils.data import DataLoader

    from torchsplit_core.model_source import foreign_code, load_trainable, open_model
    from torchsplit_core.training.parallelize import to_device

    client = load_trainable(source, trust)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = open_model(client).to(device)
    sums: dict[str, float] = defaultdict(float)
    samples = 0
    with torch.inference_mode(), foreign_code("get_metrics()"):
        for inputs, targets in DataLoader(client.get_validation_dataset(), batch_size=BATCH):
            inputs, targets = to_device((inputs, targets), device)
            size = len(inputs[0])
            for name, value in client.get_metrics(model(*inputs), targets).items():
                if not math.isfinite(value):
                    raise InputFault("get_metrics()", f"gives {value} for {name}", "Return finite numbers.")
                sums[str(name)] += float(value) * size
            samples += size
    if not samples:
        raise InputFault("get_validation_dataset()", "has no samples", "Return at least one.")
    return {name: total / samples for name, total in sums.items()}, samples
