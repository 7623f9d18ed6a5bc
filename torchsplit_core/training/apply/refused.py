"""What is not written as a file, with its reason: a file that trains otherwise than its strategy says is worse."""

from __future__ import annotations

from torchsplit_core.values.errors import InputFault, quoted
from torchsplit_core.values.strategy.outcome import StrategyCandidate
from torchsplit_core.values.strategy.request import SourceSizes, StrategyRequest

REMEDY = "Choose another candidate, or fix the choice in the request."


def check_written(request: StrategyRequest, one: StrategyCandidate) -> None:
    """Raises InputFault for a candidate that plain PyTorch does not do, or not in a few lines."""
    for told, value, why in _reasons(request, one):
        shown = value if isinstance(value, int) else quoted(value)
        raise InputFault(f"candidate.{told}", f"is {shown}, for which no file is written: {why}", REMEDY)


def not_exportable(request: StrategyRequest, one: StrategyCandidate) -> str | None:
    """Why no file is written for a candidate, None where one is."""
    return next((f"{told} {value}: {why}" for told, value, why in _reasons(request, one)), None)


def _reasons(request: StrategyRequest, one: StrategyCandidate) -> list[tuple[str, object, str]]:
    model, precision = request.model, request.training.precision
    found: list[tuple[str, object, str]] = []
    if one.stages:
        why = "shares of unlike nodes have a program each"
        if one.across:
            why = "stages of unlike groups of devices are none that PyTorch's schedules join"
        found.append(("stages", len(one.stages), why))
    if precision in ("fp16", "fp8"):
        why = "fp16 needs its loss scaled" if precision == "fp16" else "fp8 needs modules of torchao"
        found.append(("precision", precision, why))
    if one.context > 1:
        found.append(("context", one.context, "context parallelism in PyTorch is a prototype"))
    if one.expert > 1 or (not isinstance(model, SourceSizes) and model.experts > 1):
        found.append(("expert", one.expert, "mixtures of experts have no plain form in PyTorch"))
    if one.offload == "optimizer":
        found.append(
            ("offload", one.offload, "PyTorch offloads states with the parameters alone (fully_shard)")
        )
    if one.shard == "zero1" and one.tensor > 1:
        found.append(("shard", one.shard, "ZeroRedundancyOptimizer does not divide tensors that are divided"))
    if not isinstance(model, SourceSizes) and model.kv_heads % one.tensor:
        found.append(
            ("tensor", one.tensor, f"heads of the keys, {model.kv_heads}, would have to be repeated")
        )
    if isinstance(model, SourceSizes) and model.source.endswith(".pt2"):
        found.append(
            ("source", model.source, "a .pt2 has lost the modules that are wrapped; give the Python file")
        )
    return found
