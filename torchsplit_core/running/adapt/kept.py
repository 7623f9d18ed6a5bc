"""What the starts of a command go on with that differs from its strategy: a file in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torchsplit_core.files import replace_file
from torchsplit_core.running.folder import SETTING
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy
from torchsplit_core.values.training import Recompute


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A move of blocks that the next start ends: which, from when (seconds of the epoch), what a step took and will."""

    what: str
    began_s: float
    written_s: float
    step_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True)
class Kept:
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
    under_way: UnderWay | None = None


def read_kept(folder: Path) -> Kept:
    """What an earlier start of this command kept."""
    try:
        told: Mapping[str, Any] = json.loads((folder / SETTING).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Kept()
    under_way = told["under_way"] and UnderWay(**told["under_way"])
    return Kept(**{**told, "layers": tuple(told["layers"]), "under_way": under_way})


def keep(folder: Path, kept: Kept) -> None:
    """Have every start from now on use it. Raises InputFault where it cannot be written."""
    replace_file(folder / SETTING, json.dumps(asdict(kept)) + "\n")


def with_kept(strategy: RunStrategy, options: RunOptions, folder: Path) -> tuple[RunStrategy, RunOptions]:
    """Both as earlier starts of this command left them; layers of other numbers of stages are the strategy's again."""
    kept, choices = read_kept(folder), strategy.choices
    choices = replace(
        choices,
        micro_batch=kept.micro_batch or choices.micro_batch,
        recompute=kept.recompute or choices.recompute,
    )
    alike = choices.pipeline > 1 and len(kept.layers) == choices.pipeline * choices.interleave
    layers = kept.layers if alike else strategy.layers
    staying = choices.pipeline > 1 and kept.stay
    return (
        replace(strategy, choices=choices, layers=layers),
        replace(options, balance=False) if staying else options,
    )
