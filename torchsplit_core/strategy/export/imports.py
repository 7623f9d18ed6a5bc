"""The imports of a file: only those of the names that its text uses."""

from __future__ import annotations

import ast

STANDARD = (
    ("import argparse", "argparse"),
    ("import importlib.util", "importlib"),
    ("import os", "os"),
    ("import sys", "sys"),
    ("from contextlib import nullcontext", "nullcontext"),
    ("from pathlib import Path", "Path"),
    ("from typing import Any", "Any"),
)
TORCHSPLIT = (("from torchsplit_core.bundle import sample_models", "sample_models"),)
TORCH = (
    ("import torch", "torch"),
    ("import torch.distributed as dist", "dist"),
    ("import torch.nn.functional as F", "F"),
)
NAMES = (
    ("torch", ("Tensor", "nn")),
    ("torch.distributed._functional_collectives", ("all_to_all_single_autograd",)),
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", ("checkpoint_wrapper",)),
    ("torch.distributed.device_mesh", ("DeviceMesh", "init_device_mesh")),
    ("torch.distributed.fsdp", ("CPUOffloadPolicy", "MixedPrecisionPolicy", "fully_shard")),
    ("torch.distributed.optim", ("ZeroRedundancyOptimizer",)),
    (
        "torch.distributed.pipelining",
        (
            "PipelineStage",
            "Schedule1F1B",
            "ScheduleGPipe",
            "ScheduleInterleaved1F1B",
            "SplitPoint",
            "build_stage",
            "pipeline",
        ),
    ),
    ("torch.distributed.tensor", ("DTensor", "Partial", "Replicate", "Shard")),
    ("torch.distributed.tensor.experimental", ("context_parallel",)),
    (
        "torch.distributed.tensor.parallel",
        (
            "ColwiseParallel",
            "ParallelStyle",
            "PrepareModuleInput",
            "RowwiseParallel",
            "SequenceParallel",
            "parallelize_module",
        ),
    ),
    ("torch.nn.parallel", ("DistributedDataParallel",)),
    ("torch.utils", ("_pytree as pytree",)),
    ("torch.utils.checkpoint", ("CheckpointPolicy", "create_selective_checkpoint_contexts")),
)
LINE = 110


def imports_of(body: str) -> str:
    """The import lines of a body."""
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    standard = [line for line, name in STANDARD if name in used]
    others = [line for line, name in TORCH if name in used]
    for module, names in NAMES:
        used_names = [name for name in names if name.split(" ")[-1] in used]
        if used_names:
            others.append(_line(module, used_names))
    torchsplit = (
        ["", *(line for line, name in TORCHSPLIT if name in used)]
        if any(name in used for _, name in TORCHSPLIT)
        else []
    )
    return "\n".join([*standard, "", *others, *torchsplit]) + "\n"


def _line(module: str, names: list[str]) -> str:
    plain = f"from {module} import {', '.join(names)}"
    if len(plain) <= LINE:
        return plain
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"
