"""A simulated day in lines of text: its sides and models, and what they are figures of."""

from __future__ import annotations

from collections.abc import Iterator

from torchsplit_core.transition.table import aligned
from torchsplit_core.values import DayReplay, ReplayHour, ReplayModel, ReplaySide

SIDE_WORDS = {"windows": "by window", "static": "one plan", "rule": "threshold rule"}
HEADINGS = (
    "side", "model", "p50 ms", "p95 ms", "p99 ms", "within limits", "in changes", "outside", "lost", "waiting",
    "utilisation", "stable",
)  # fmt: skip


def replay_lines(replay: DayReplay) -> Iterator[str]:
    """The lines of a summary: every side and model, GPU-hours, and how it was simulated."""
    yield from aligned([HEADINGS, *replay_rows(replay)])
    for side in replay.sides:
        yield f"{SIDE_WORDS[side.name]}: {side_text(replay, side)}"
    yield f"{basis_text(replay)}."


def replay_rows(replay: DayReplay) -> Iterator[tuple[str, ...]]:
    """The cells of HEADINGS for every side and model."""
    return (row for side in replay.sides for row in _rows(side))


def p95_rows(replay: DayReplay, model: str) -> Iterator[tuple[str, ...]]:
    """For every hour the p95 of a model on each side, in their order, in ms."""
    shown = [next((item for item in side.models if item.name == model), None) for side in replay.sides]
    for hour in range(24):
        cells = [None if item is None else item.hours[hour] for item in shown]
        yield (f"{hour:02}:00", *("n/a" if cell is None else _p95(cell) for cell in cells))


def _p95(hour: ReplayHour) -> str:
    return _figure(hour.response_ms.p95) + (" (not stable)" if hour.stable is False else "")


def side_text(replay: DayReplay, side: ReplaySide) -> str:
    """GPU-hours, changes and requests without an answer of a side."""
    if side.message is not None:
        return f"n/a: {side.message}"
    lost = sum(model.lost_requests for model in side.models)
    changes = "no changes" if not side.transition_s else f"{side.transition_s:.4g} s of changes"
    target = f", a target of {replay.rule.target:.0%}" if side.name == "rule" else ""
    text = f"{side.gpu_hours:.4g} GPU-hours, at most {side.most_gpus} GPUs, {changes}, {lost:.4g} requests lost{target}"
    for model in side.models:
        hours = [hour.hour for hour in model.hours if hour.stable is False]
        if hours:
            named = ", ".join(f"{hour:02}:00" for hour in hours[:6]) + (", …" if len(hours) > 6 else "")
            text += f"; {model.name} is not stable at {named} UTC: more arrives than what runs can carry"
    return text


def basis_text(replay: DayReplay) -> str:
    """How many requests the figures are of."""
    trace = replay.trace
    simulated = max((sum(m.simulated_requests for m in side.models) for side in replay.sides), default=0)
    parts = [f"Simulated, {trace.requests:,.0f} requests in the day of the trace"]
    if replay.simulated_share is None or replay.simulated_share >= 1:
        parts.append(f"all of them in each of {replay.replications} replications")
    else:
        parts.append(
            f"of which {replay.simulated_share:.2%} one by one in each of {replay.replications} replications "
            f"({simulated:,} a side), sampled within every step of the trace"
        )
    if trace.holes:
        parts.append(f"{trace.holes} values of the trace are missing: nothing is known of their time")
    if replay.service_basis is not None:
        parts.append(f"service times {replay.service_basis}")
    return "; ".join(parts)


def _rows(side: ReplaySide) -> Iterator[tuple[str, ...]]:
    for model in side.models:
        yield (SIDE_WORDS[side.name], model.name, *_cells(model))


def _cells(model: ReplayModel) -> tuple[str, ...]:
    times, shares = model.response_ms, model.attainment
    width = "" if model.p95_ci95_ms is None or times.p95 is None else f" ± {model.p95_ci95_ms:.2g}"
    return (
        _figure(times.p50), f"{_figure(times.p95)}{width}", _figure(times.p99), _share(shares.all),
        _share(shares.in_transitions), _share(shares.outside), f"{model.lost_requests:.4g}",
        f"{model.waiting_requests:.4g}", _share(model.utilisation),
        "n/a" if model.stable is None else "yes" if model.stable else "no",
    )  # fmt: skip


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def _share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3%}"
