"""Sliders over a scenario's draft in the presentation: demands of models, and the GPUs of the first type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from app.components.field_rows import Edit
from app.components.live_slider import live_slider
from app.plans.inputs import fleet, models
from app.plans.inputs.draft_editor import DraftEditor
from torchsplit_core.pictures.numbers import THIN, short
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import point_type

OnMove = Callable[[], None]
"""Called after each move."""


def demand_of(editor: DraftEditor, model: str, served: Mapping[str, float], moved: OnMove) -> None:
    """The demand of one model. `served` has the requests/s of the plan on screen by model."""
    now = next(spec.demand_rps for spec in editor.current.models if spec.name == model)
    base = next((spec.demand_rps for spec in editor.stored.models if spec.name == model), now)
    rps = served.get(model)
    share = rps / now if rps is not None and now else None
    _slider(
        f"{model}, req/s", models.demand_stops(now, base), now, f"{editor.key('models')} presented {model}",
        lambda demand: models.apply_edits(editor, [Edit(model, "demand_rps", demand)]), moved,
        note="" if share is None else f"{short(share)}{THIN}×",
        below=share is not None and share < 1 and not equal(share, 1.0),
    )  # fmt: skip


def of_fleet(editor: DraftEditor, moved: OnMove) -> None:
    """The number of GPUs of the first type."""
    row, entry, stored = fleet.first_row(editor)
    _slider(
        f"{'GPUs' if point_type(entry.type) == entry.type else 'Hosts'}, {entry.type}",
        fleet.count_stops(entry, stored), entry.count, f"{editor.key('fleet')} presented",
        lambda count: fleet.apply_edits(editor, [Edit(row, "count", count)]), moved,
    )  # fmt: skip


def _slider(
    label: str,
    stops: Sequence[tuple[float, str]],
    now: float,
    key: str,
    take: Callable[[float], None],
    moved: OnMove,
    *,
    note: str = "",
    below: bool = False,
) -> None:
    values = [value for value, _ in stops]

    def move(at: int) -> None:
        take(values[at])
        moved()

    live_slider(
        label, [text for _, text in stops], values.index(now), key=key, on_move=move, row=True, note=note, below=below,
    )  # fmt: skip
