"""Sliders over a scenario's draft while it is presented: demands of models, and how many GPUs of the first kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from app.components.live_slider import live_slider
from app.format.numbers import THIN, exact, short
from app.plan.inputs.fields import FACTORS
from app.session import draft as drafts
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import PlanModel, PlanRequest, point_type
from torchsplit_core.workspace.store import Workspace

MOST_GPUS = 4096


@dataclass(frozen=True, slots=True)
class Ground:
    """The scenario whose draft the sliders write: `current` is the draft's request, or the `stored` one. After each
    move `moved` is called."""

    workspace: Workspace
    name: str
    stored: PlanRequest
    current: PlanRequest
    moved: Callable[[], None]

    def key(self, what: str) -> str:
        """The key of one slider."""
        return f"present {what} {self.workspace.id} {self.name}"

    def write(self, edited: PlanRequest) -> None:
        """Make it the draft."""
        drafts.change(self.workspace, self.name, self.stored, edited)
        self.moved()


def demand_of(ground: Ground, model: str, served: Mapping[str, float]) -> None:
    """The demand of one model. `served`: requests/s that the plan on screen gives, by model."""
    now, rps = _model(ground.current, model).demand_rps, served.get(model)
    base = next((one.demand_rps for one in ground.stored.models if one.name == model), now)
    share = rps / now if rps is not None and now else None
    # What was typed on the Plan page lies between the steps, or beyond them.
    steps = sorted({base, now, *(float(f"{base * factor:.6g}") for factor in FACTORS)})

    def move(place: int) -> None:
        changed = replace(_model(ground.current, model), demand_rps=steps[place])
        models = tuple(changed if one.name == model else one for one in ground.current.models)
        ground.write(replace(ground.current, models=models))

    live_slider(
        f"{model}, req/s", [exact(step) for step in steps], steps.index(now),
        key=ground.key(f"demand {model}"), on_move=move, row=True,
        note="" if share is None else f"{short(share)}{THIN}×",
        below=share is not None and share < 1 and not equal(share, 1.0),
    )  # fmt: skip


def of_fleet(ground: Ground) -> None:
    """How many GPUs of the first kind."""
    entry, stored = ground.current.gpus[0], ground.stored.gpus[0]
    most = min(MOST_GPUS, max(8, 2 * stored.count, entry.count))

    def move(place: int) -> None:
        count = place + 1
        # An entry with an id of its own is one GPU; several get numbered ids, and back at one it has its own again.
        same = stored.type == entry.type and stored.count == count
        changed = replace(entry, count=count, id=stored.id if same else entry.id if count == 1 else None)
        ground.write(replace(ground.current, gpus=(changed, *ground.current.gpus[1:])))

    live_slider(
        f"{'GPUs' if point_type(entry.type) == entry.type else 'Hosts'}, {entry.type}",
        [str(number) for number in range(1, most + 1)], entry.count - 1,
        key=ground.key("gpus"), on_move=move,
    )  # fmt: skip


def _model(request: PlanRequest, name: str) -> PlanModel:
    return next(model for model in request.models if model.name == name)
