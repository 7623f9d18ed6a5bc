"""Overrides of the strategy that survive restarts, stored in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torchsplit_core.files import replace_file
from torchsplit_core.training.fitted_strategy import fit_to_world_size, in_passes
from torchsplit_core.training.run_folder import OVERRIDES
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy
from torchsplit_core.values.training import Recompute


@dataclass(frozen=True, slots=True)
class PendingMove:
    """A move of blocks that the next attempt completes. `began_s`: seconds since the epoch; `step_s`: a step before."""

    what: str
    began_s: float
    written_s: float
    step_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True)
class RunOverrides:
    """Unset fields keep the strategy's value.

    `micro_batch`, `recompute`: set after running out of memory. `layers`: blocks of each stage; `stay`: no more moves.
    `moved_s`: when blocks last moved; `move_s`: how long that took.
    """

    micro_batch: int | None = None
    recompute: Recompute | None = None
    layers: tuple[int, ...] = ()
    stay: bool = False
    moved_s: float | None = None
    move_s: float | None = None
    under_way: PendingMove | None = None


def read_overrides(folder: Path) -> RunOverrides:
    """The overrides of earlier attempts, empty if there are none."""
    try:
        data: Mapping[str, Any] = json.loads((folder / OVERRIDES).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return RunOverrides()
    under_way = data["under_way"] and PendingMove(**data["under_way"])
    return RunOverrides(**{**data, "layers": tuple(data["layers"]), "under_way": under_way})


def save_overrides(folder: Path, overrides: RunOverrides) -> None:
    """Store them for all later attempts. Raises InputFault if the file cannot be written."""
    replace_file(folder / OVERRIDES, json.dumps(asdict(overrides)) + "\n")


def fit_attempt(
    strategy: RunStrategy, options: RunOptions, folder: Path, processes: int
) -> tuple[RunStrategy, RunOptions]:
    """The strategy and options of an attempt on `processes` processes, with the overrides of earlier attempts.

    Overridden layers apply only to the same number of stages.
    """
    strategy = in_passes(fit_to_world_size(strategy, processes), options.update.accumulate)
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
