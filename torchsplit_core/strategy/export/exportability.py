"""Why a candidate is not exported: a script that trains differently from its strategy is worse than none."""

from __future__ import annotations

from collections.abc import Iterator

from torchsplit_core.strategy.supported import refusals, traits_of
from torchsplit_core.values.errors import InputFault, quoted
from torchsplit_core.values.strategy.outcome import StrategyCandidate
from torchsplit_core.values.strategy.request import SourceSizes, StrategyRequest

REMEDY = "Choose another candidate, or fix the choice in the request."


def check_exportable(request: StrategyRequest, candidate: StrategyCandidate) -> None:
    """Raises InputFault for a candidate that plain PyTorch cannot run, or not in a few lines."""
    for field, value, why in _reasons(request, candidate):
        text = value if isinstance(value, int) else quoted(value)
        raise InputFault(f"candidate.{field}", f"is {text}, for which no file is written: {why}", REMEDY)


def not_exportable(request: StrategyRequest, candidate: StrategyCandidate) -> str | None:
    """Why a candidate cannot be exported; None if it can."""
    return next((f"{field} {value}: {why}" for field, value, why in _reasons(request, candidate)), None)


def _reasons(request: StrategyRequest, candidate: StrategyCandidate) -> Iterator[tuple[str, object, str]]:
    model = request.model
    if len(candidate.stages) > 1:
        why = "shares of unlike nodes have a program each"
        if candidate.across:
            why = "stages of unlike groups of devices are none that PyTorch's schedules join"
        yield "stages", len(candidate.stages), why
    for refusal in refusals(candidate.choices, request.training.precision, "export", traits_of(model)):
        yield refusal.choice, refusal.value, refusal.why
    if isinstance(model, SourceSizes) and model.source.endswith(".pt2"):
        yield "source", model.source, "a .pt2 has lost the modules that are wrapped; give the Python file"
