"""One thing wrong with a plan, as a value: where, what is there, the rule it breaks, and what would mend it."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.values.hardware import profile_words


@dataclass(frozen=True, slots=True)
class PlanFault:
    """`gpu`, `slice` ("3g.40gb at 0") and `model` say where, as far as they apply; the rest is as in InputFault."""

    gpu: str | None
    slice: str | None
    model: str | None
    value: str
    rule: str
    remedy: str

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.gpu, self.slice, self.model) if part is not None)
        return f"{where}{': ' if where else ''}{self.value} — {self.rule}. {self.remedy}"


def slice_name(profile: str, start: int) -> str:
    """How a slice is named in faults."""
    return f"{profile} at {start}" if profile else profile_words(profile)
