"""The restarts of a run, read from its events: a rank is lost, or blocks move, and all ranks start again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torchsplit_core.training.monitor import Event

LOSSES = ("rank_lost", "others_lost")
BEGINS = ("resumed", "started")
"""The first event of a start of all ranks; at a run's first start it is no restart."""
KINDS = (*LOSSES, "out_of_memory", "restarted", "scaled", *BEGINS)
_STEP = re.compile(r"\bstep (\d+)")


@dataclass(frozen=True, slots=True)
class Restart:
    """One restart: the step after which the ranks go on, and the words of its events in their order.

    Before the ranks go on, the step is the one at which the first of them was lost.
    """

    step: int
    words: tuple[str, ...]


def step_in_words(event: Event) -> int | None:
    """The step that the words of an event name first; None where they name none."""
    match = _STEP.search(event.words)
    return int(match[1]) if match else None


def restarts_of(events: Iterable[Event]) -> tuple[Restart, ...]:
    """The restarts in their order; one whose events name no step is left out."""
    restarts = []
    for group in _groups(events):
        # What ended the ranks before names another step than the one that they go on after.
        named = [event for event in group if event.kind in BEGINS] or group
        step = next((step for event in named if (step := step_in_words(event)) is not None), None)
        if step is not None and any(event.kind in (*LOSSES, "restarted", "resumed") for event in group):
            restarts.append(Restart(step, tuple(event.words for event in group)))
    return tuple(restarts)


def _groups(events: Iterable[Event]) -> Iterator[list[Event]]:
    """The events of each start of all ranks. That blocks have moved is told once the ranks go on."""
    group: list[Event] = []
    for event in events:
        if event.kind == "layers_moved":
            group.append(event)
        elif event.kind in KINDS:
            if any(before.kind in BEGINS for before in group):
                yield group
                group = []
            group.append(event)
    if group:
        yield group
