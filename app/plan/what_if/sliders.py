"""Sliders over a scenario's draft: a model's weight and demand, and how many GPUs; each move is planned at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.components.live_slider import live_slider
from app.format.numbers import THIN, exact, short
from app.session import draft as drafts
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import PlanModel, PlanRequest, point_type
from torchsplit_core.workspace.store import Workspace

FACTORS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""What a slider offers, as multiples of the stored value."""
MOST_GPUS = 4096
MOST_KINDS = 3
"""Kinds of GPU with a slider of their own; the fleet's table has all."""


@dataclass(frozen=True, slots=True)
class Ground:
    """The scenario whose draft the sliders write: `current` is the draft's request, or the `stored` one.

    `mark` is a part of their keys, reckoned once: its fingerprint of the request is no small thing.
    """

    workspace: Workspace
    name: str
    stored: PlanRequest
    current: PlanRequest
    mark: str

    @classmethod
    def of(cls, workspace: Workspace, name: str, stored: PlanRequest, current: PlanRequest) -> Ground:
        return cls(workspace, name, stored, current, drafts.slider_mark(workspace, name, stored))

    def write(self, edited: PlanRequest) -> None:
        """Make it the draft."""
        drafts.change(self.workspace, self.name, self.stored, edited)


def demand_of(ground: Ground, model: str, served: Mapping[str, float]) -> None:
    """A row with the demand of one model. `served`: requests/s that the plan on screen gives, by model."""
    demand, rps = _model(ground.current, model).demand_rps, served.get(model)
    share = rps / demand if rps is not None and demand else None
    _slider(
        ground, model, "demand_rps", f"{model}, req/s", row=True,
        note="" if share is None else f"{short(share)}{THIN}×",
        below=share is not None and share < 1 and not equal(share, 1.0),
    )  # fmt: skip


def weight_of(ground: Ground, model: str) -> None:
    """The weight of one model."""
    _slider(ground, model, "weight", "Weight")


def of_fleet(ground: Ground, kinds: int = MOST_KINDS) -> None:
    """How many GPUs of the first kinds."""
    for place, entry in enumerate(ground.current.gpus[:kinds]):
        _gpus(ground, place, entry.type)


def _slider(ground: Ground, model: str, what: str, label: str, **look: Any) -> None:
    now_of = _model(ground.current, model)
    base_of = next((one for one in ground.stored.models if one.name == model), now_of)
    base, now = (float(getattr(one, what)) for one in (base_of, now_of))
    # What was typed into the table lies between the steps, or beyond them.
    options = sorted({base, now, *(float(f"{base * factor:.6g}") for factor in FACTORS)})
    live_slider(
        label,
        [exact(option) for option in options],
        options.index(now),
        key=f"{what} {model} {ground.mark}",
        on_move=lambda chosen: _move(ground, model, what, options[chosen]),
        **look,
    )


def _gpus(ground: Ground, place: int, kind: str) -> None:
    count = ground.current.gpus[place].count
    base = ground.stored.gpus[place].count if place < len(ground.stored.gpus) else count
    most = min(MOST_GPUS, max(8, 2 * base, count))
    live_slider(
        f"{'GPUs' if point_type(kind) == kind else 'Hosts'}, {kind}",
        [str(number) for number in range(1, most + 1)],
        count - 1,
        key=f"gpus {place} {ground.mark}",
        on_move=lambda chosen: _count(ground, place, chosen + 1),
    )


def _move(ground: Ground, model: str, what: str, value: float) -> None:
    field: dict[str, Any] = {what: float(value)}
    changed = replace(_model(ground.current, model), **field)
    models = tuple(changed if one.name == model else one for one in ground.current.models)
    ground.write(replace(ground.current, models=models))


def _count(ground: Ground, place: int, count: int) -> None:
    gpus = list(ground.current.gpus)
    known = ground.stored.gpus[place] if place < len(ground.stored.gpus) else None
    # An entry with an id of its own is one GPU; several get numbered ids, and back at one it has its own again.
    same = known is not None and known.type == gpus[place].type and known.count == count
    identity = known.id if known is not None and same else gpus[place].id if count == 1 else None
    gpus[place] = replace(gpus[place], count=count, id=identity)
    ground.write(replace(ground.current, gpus=tuple(gpus)))


def _model(request: PlanRequest, name: str) -> PlanModel:
    return next(model for model in request.models if model.name == name)
