"""The steps that prepare a traced graph for cutting, by name; each may be left out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from torchsplit_core.values import InputFault, quoted, suggestion

StepName: TypeAlias = Literal["dead", "constants", "aliases", "weights", "side-band"]


@dataclass(frozen=True, slots=True)
class PreparationStep:
    """One step: `title` in the field's terms, `about` its action and purpose, in one sentence."""

    name: StepName
    title: str
    about: str


STEPS = (
    PreparationStep(
        "dead",
        "Dead-code elimination",
        "Operations that no output needs (assertions, unused results) are set aside; "
        "left in, each would be a second end of the model.",
    ),
    PreparationStep(
        "constants",
        "Constant folding",
        "Operations that weights and constants alone determine do not depend on a request: "
        "with one reader they join that reader, instead of being sources of their own.",
    ),
    PreparationStep(
        "aliases",
        "Alias fusion",
        "getitem and views (reshape, transpose, split, …) join the operation whose storage they share: "
        "a cut between the two would copy what is one tensor.",
    ),
    PreparationStep(
        "weights",
        "Weights charged to their readers",
        "Parameters, buffers and constants leave the dataflow, their bytes are charged to the units that "
        "read them; left in, each is a source that no cut point can dominate.",
    ),
    PreparationStep(
        "side-band",
        "Side-band",
        "Constants with several readers and small values that inputs alone determine (attention masks) are "
        "shipped beside every cut, instead of counting as a second live value.",
    ),
)
"""In the order in which they are taken."""

ALL_STEPS: tuple[StepName, ...] = tuple(step.name for step in STEPS)


def chosen_steps(names: Collection[str]) -> tuple[StepName, ...]:
    """These steps, each once, in order. Raises InputFault for an unknown name."""
    known = get_args(StepName)
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise InputFault(
            "", f"unknown preparation step {quoted(unknown)}", suggestion(unknown, known, "steps")
        )
    return tuple(name for name in ALL_STEPS if name in names)
