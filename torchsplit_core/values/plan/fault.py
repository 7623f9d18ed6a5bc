"""One thing wrong with a plan, as a value: where, what is wrong, and the remedy."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.values.hardware import profile_words


@dataclass(frozen=True, slots=True)
class PlanFault:
    """`gpu`, `slice` ("3g.40gb at 0") and `model` say where, as far as they apply; the rest is as in InputFault."""

    gpu: str | None
    slice: str | None
    model: str | None
    problem: str
    remedy: str

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.gpu, self.slice, self.model) if part is not None)
        return f"{where}{': ' if where else ''}{self.problem}. {self.remedy}"


def slice_name(profile: str, start: int) -> str:
    """How a slice is named in faults."""
    return f"{profile} at {start}" if profile else profile_words(profile)
