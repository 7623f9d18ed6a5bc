"""What is not written as a file, with its reason: a file that trains otherwise than its strategy says is worse."""

from __future__ import annotations

from torchsplit_core.values.errors import InputFault, quoted
from torchsplit_core.values.strategy.outcome import StrategyCandidate
from torchsplit_core.values.strategy.request import SourceSizes, StrategyRequest

REMEDY = "Choose another candidate, or fix the choice in the request."


def check_exportable(request: StrategyRequest, candidate: StrategyCandidate) -> None:
    """Raises InputFault for a candidate that plain PyTorch does not do, or not in a few lines."""
    for field, value, why in _reasons(request, candidate):
        text = value if isinstance(value, int) else quoted(value)
        raise InputFault(f"candidate.{field}", f"is {text}, for which no file is written: {why}", REMEDY)


def not_exportable(request: StrategyRequest, candidate: StrategyCandidate) -> str | None:
    """Why no file is written for a candidate, None where one is."""
    return next((f"{field} {value}: {why}" for field, value, why in _reasons(request, candidate)), None)


def _reasons(request: StrategyRequest, candidate: StrategyCandidate) -> list[tuple[str, object, str]]:
    model, precision = request.model, request.training.precision
    reasons: list[tuple[str, object, str]] = []
    if candidate.stages:
        why = "shares of unlike nodes have a program each"
        if candidate.across:
            why = "stages of unlike groups of devices are none that PyTorch's schedules join"
        reasons.append(("stages", len(candidate.stages), why))
    if precision in ("fp16", "fp8"):
        why = "fp16 needs its loss scaled" if precision == "fp16" else "fp8 needs modules of torchao"
        reasons.append(("precision", precision, why))
    if candidate.context > 1:
        reasons.append(("context", candidate.context, "context parallelism in PyTorch is a prototype"))
    if candidate.expert > 1 or (not isinstance(model, SourceSizes) and model.experts > 1):
        reasons.append(("expert", candidate.expert, "mixtures of experts have no plain form in PyTorch"))
    if candidate.offload == "optimizer":
        reasons.append(
            ("offload", candidate.offload, "PyTorch offloads states with the parameters alone (fully_shard)")
        )
    if candidate.shard == "zero1" and candidate.tensor > 1:
        reasons.append(
            ("shard", candidate.shard, "ZeroRedundancyOptimizer does not divide tensors that are divided")
        )
    if not isinstance(model, SourceSizes) and model.kv_heads % candidate.tensor:
        reasons.append(
            ("tensor", candidate.tensor, f"heads of the keys, {model.kv_heads}, would have to be repeated")
        )
    if isinstance(model, SourceSizes) and model.source.endswith(".pt2"):
        reasons.append(
            ("source", model.source, "a .pt2 has lost the modules that are wrapped; give the Python file")
        )
    return reasons
