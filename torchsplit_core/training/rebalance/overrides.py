"""What the starts of a command go on with that differs from its strategy: a file in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torchsplit_core.files import replace_file
from torchsplit_core.training.run_folder import OVERRIDES
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy
from torchsplit_core.values.training import Recompute


@dataclass(frozen=True, slots=True)
class PendingMove:
    """A move of blocks that the next start ends: which, from when (seconds of the epoch), what a step took and will."""

    what: str
    began_s: float
    written_s: float
    step_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True)
class RunOverrides:
    """Nothing of it: as the strategy says.

    `micro_batch`, `recompute`: what gave way to memory. `layers`: blocks of each stage; `stay`: they move no more.
    `moved_s`: when blocks moved last, `move_s`: what that took.
    """

    micro_batch: int | None = None
    recompute: Recompute | None = None
    layers: tuple[int, ...] = ()
    stay: bool = False
    moved_s: float | None = None
    move_s: float | None = None
    under_way: PendingMove | None = None


def read_overrides(folder: Path) -> RunOverrides:
    """What an earlier start of this command kept."""
    try:
        data: Mapping[str, Any] = json.loads((folder / OVERRIDES).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return RunOverrides()
    under_way = data["under_way"] and PendingMove(**data["under_way"])
    return RunOverrides(**{**data, "layers": tuple(data["layers"]), "under_way": under_way})


def save_overrides(folder: Path, overrides: RunOverrides) -> None:
    """Have every start from now on use it. Raises InputFault where it cannot be written."""
    replace_file(folder / OVERRIDES, json.dumps(asdict(overrides)) + "\n")


def apply_overrides(
    strategy: RunStrategy, options: RunOptions, folder: Path
) -> tuple[RunStrategy, RunOptions]:
    """Both as earlier starts of this command left them; layers of other numbers of stages are the strategy's again."""
    overrides, choices = read_overrides(folder), strategy.choices
    choices = replace(
        choices,
        micro_batch=overrides.micro_batch or choices.micro_batch,
        recompute=overrides.recompute or choices.recompute,
    )
    same_stages = choices.pipeline > 1 and len(overrides.layers) == choices.pipeline * choices.interleave
    layers = overrides.layers if same_stages else strategy.layers
    pinned = choices.pipeline > 1 and overrides.stay
    return (
        replace(strategy, choices=choices, layers=layers),
        replace(options, balance=False) if pinned else options,
    )
