"""Writes the parts of cut models before they are served."""

from __future__ import annotations

from pathlib import Path

from torchsplit_core.serving.plan import ServedModel, ServingPlan
from torchsplit_core.values import PartitionCandidate, Progress


def export_parts(serving_plan: ServingPlan, root: Path, trust: bool, progress: Progress) -> dict[str, str]:
    """Write the stages of each cut model to a folder below `root`; the folders by model.

    Raises InputFault if a model cannot be traced or cut at its nodes.
    """
    cut = [model for model in serving_plan.models if model.nodes]
    folders = {}
    for number, model in enumerate(cut):
        progress(number / len(cut), f"writing the parts of {model.name}")
        folder = root / f"parts-{number}"
        _export(model, folder, trust)
        folders[model.name] = str(folder)
    return folders


def _export(model: ServedModel, folder: Path, trust: bool) -> None:
    from torchsplit_core.stages import export_stages
    from torchsplit_core.tracing import trace

    graph = trace(model.source, trust=trust)
    candidate = PartitionCandidate(
        stages=model.nodes,
        loads_ms=(0.0,) * len(model.nodes),
        max_load_ms=0.0,
        cut_bytes=(0,) * (len(model.nodes) - 1),
        peak_memory_bytes=(0,) * len(model.nodes),
    )
    export_stages(model.source, candidate, folder, architecture_hash=graph.architecture_hash, trust=trust)
