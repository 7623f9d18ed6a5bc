"""Notes of an infeasible outcome on reasons that time did not suffice to settle."""

from __future__ import annotations

from torchsplit_core.values import PlanOutcome

NO_CONFLICT = "No conflict of demands could be proven minimal in the time given."
NO_RELAXATION = "No change of the demands that gives a plan was found in the time given."
SMALLER = "A smaller change of the demands may exist: the search for the smallest ran out of time."
WHOLE_OR_MINIMA = (
    "With sharing the relaxation is the least for whole slices or for minima alone, whichever is less."
)


def unsettled_notes(outcome: PlanOutcome) -> tuple[str, ...]:
    """Those of these notes that an infeasible outcome has; a longer search may settle them."""
    return tuple(note for note in outcome.warnings if note in (NO_CONFLICT, NO_RELAXATION, SMALLER))
