"""A run in words and rows: what it is, what its ranks say, what happened, what is kept."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from app.format.badges import Colour
from app.format.gpus import gpu_cells
from app.format.html import table_html
from app.runs.communication import communication_share
from torchsplit_core.pictures.numbers import (
    UNKNOWN,
    counted,
    duration,
    escape_markdown,
    exact,
    memory_size,
    percent,
    short,
    size,
)
from torchsplit_core.strategy.search.descriptions import describe_choices
from torchsplit_core.training.monitor import Event, RunView
from torchsplit_core.values.strategy.outcome import StrategyCandidate
from torchsplit_core.values.training import ParallelConfig
from torchsplit_core.values.units import GIB

STATES: Mapping[str, tuple[str, Colour]] = {
    "starting": ("starting", "blue"),
    "running": ("running", "blue"),
    "recovering": ("recovering", "yellow"),
    "finished": ("finished", "green"),
    "stopped": ("stopped", "gray"),
    "broken off": ("interrupted", "red"),
}
EVENT_SEVERITY = {
    "rank_lost": "bad", "checkpoint_failed": "bad", "checkpoint_damaged": "bad", "not_finite": "bad",
    "restarted": "change", "scaled": "change", "resumed": "change", "stopped": "change", "finished": "good",
    "checkpoint": "good", "layers_moving": "change", "layers_moved": "change", "layers_back": "change",
    "layers_stay": "bad", "warning": "change", "best": "good", "validation_failed": "bad",
}  # fmt: skip
"""How severe the kinds of events are; other kinds are plain."""
WIDE, NARROW = ' style="min-width: 16rem"', ' class="name"'
MOST_NAMES = 6
"""Up to how many blocks of a rank the table names all."""
ENDED = ("finished", "stopped", "broken off")
RECENT_STEPS = 20
"""How many of the last steps give the rate and the time of a step."""


def describe_candidate(candidate: StrategyCandidate) -> str:
    """The choices of a candidate in a line."""
    return describe_choices(
        ParallelConfig(**{name: getattr(candidate, name) for name in ParallelConfig.__dataclass_fields__})
    )


def format_source(source: str) -> str:
    """A source without the folders of its file."""
    return PurePath(source).name if "/" in source else source


def source_of(view: RunView) -> str:
    """What a run trains, without folders; n/a where neither its start nor run.json says it."""
    source = view.launch.source if view.launch else view.facts.get("source")
    return UNKNOWN if source is None else format_source(str(source))


def headline(view: RunView) -> str:
    """What the run trains, by which choices."""
    facts, launch = view.facts, view.launch
    if launch is not None:
        parts = [
            format_source(launch.source),
            describe_choices(launch.strategy.choices),
            f"global batch size {exact(launch.strategy.job.global_batch)}",
            launch.strategy.job.precision,
        ]
    else:
        parts = [format_source(str(facts.get("source", "a loop of your own")))]
    where = [str(facts[name]) for name in ("device", "backend") if name in facts]
    if "torch_version" in facts:
        where.append(f"torch {facts['torch_version']}")
    return ", ".join([*parts, *where])


def recent_speed(view: RunView) -> tuple[float | None, float | None]:
    """Samples a second and seconds of a step over the last steps; None before the first."""
    seconds, samples = view.steps.step_s[-RECENT_STEPS:], view.steps.samples[-RECENT_STEPS:]
    if not seconds or not sum(seconds):
        return None, None
    return sum(samples) / sum(seconds), sum(seconds) / len(seconds)


def describe_validation(view: RunView) -> str:
    """The held-out figures in a line, with their step where more were done since; "" without any."""
    validation = view.validation
    if validation is None or not validation.metrics:
        return ""
    figures = ", ".join(f"{name} {short(value)}" for name, value in validation.metrics.items())
    at = f", at step {exact(validation.step)}" if validation.step != view.last_step else ""
    return f"{figures} on {counted(validation.samples, 'held-out sample')}{at}"


def describe_last_event(view: RunView) -> str:
    """How the run ended and what Resume does, else its last event, as markdown; "" before any event."""
    newest = view.checkpoints[-1].step if view.checkpoints else None
    onward = "begins again at step 1: no checkpoint is complete."
    if newest:
        onward = f"goes on from the last checkpoint, of step {exact(newest)}."
        if (lost := view.last_step - newest) > 0:
            onward += f" {counted(lost, 'step')} since then {'is' if lost == 1 else 'are'} done again."
    resume = f" Resume {onward}" if view.launch else ""
    at = f"at step {exact(view.last_step)}" if view.last_step else "before the first step"
    match view.state:
        case "starting":
            return f"It {onward}" if newest else ""
        case "finished":
            return f"**Finished {at}.**"
        case "stopped":
            event = next(candidate for candidate in reversed(view.events) if candidate.words == view.words)
            # Say why a rank failed; a user who stopped the run knows why.
            why = f" {escape_markdown(event.words)}" if event.rank is not None else ""
            return f"**Stopped {at}.**{why}{resume}"
        case "broken off":
            return f"**Interrupted {at}:** {escape_markdown(view.words)}.{resume}"
    last = view.events[-1]
    return f"**{escape_markdown(last.kind.replace('_', ' '))}** · {escape_markdown(format_bytes(last.words))}"


def rank_rows(view: RunView) -> list[dict[str, Any]]:
    """A row per rank, its memory beside the strategy's prediction."""
    predicted = view.launch.strategy.predicted if view.launch else None
    wanted = None if predicted is None else predicted.memory_gib * GIB
    return [
        {
            "rank": str(rank.rank),
            "state": rank.state,
            "node": rank.node,
            "device": rank.device,
            "process": str(rank.pid),
            "peak memory": memory_size(rank.peak_bytes),
            "predicted": memory_size(wanted),
            "communication": percent(communication_share(rank)),
        }
        for rank in view.ranks
    ]


def stage_rows(view: RunView) -> list[dict[str, Any]]:
    """A row per rank of a pipeline: its blocks, and the seconds of a micro-batch in them; else no rows."""
    rows = []
    for rank in view.ranks:
        known = {name: spent for name, spent in rank.blocks_s.items() if spent is not None}
        longest = max(known, key=known.__getitem__, default=None)
        if rank.blocks_s:
            rows.append(
                {
                    "rank": str(rank.rank),
                    "blocks": _shorten_names([*rank.blocks_s]),
                    "a micro-batch": short(sum(known.values()), "s") if known else UNKNOWN,
                    "longest block": f"{longest}, {short(known[longest], 's')}" if longest else UNKNOWN,
                }
            )
    return rows


def _shorten_names(names: list[str]) -> str:
    """The names; of many their first, last and number."""
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{names[0]} … {names[-1]}, {exact(len(names))} blocks"


def gpu_rows(view: RunView, now: datetime) -> list[dict[str, str]]:
    """A row per GPU of the run's nodes, from the last sample."""
    return [
        {
            "node": gpu.node,
            "GPU": str(gpu.index),
            "name": gpu.name,
            **gpu_cells(gpu.state, gpu.dcgm),
            "told": f"{duration(max(0.0, (now - gpu.sampled_at).total_seconds()))} ago",
        }
        for gpu in view.gpus
    ]


def format_bytes(text: str) -> str:
    """The words of an event, with its bytes in readable units."""
    return re.sub(r"\b(\d+) bytes\b", lambda match: size(int(match[1])), text)


def describe_time_left(view: RunView) -> tuple[str, str]:
    """The estimated time left, and its basis."""
    _, step_s = recent_speed(view)
    if not view.alive or view.state in ENDED:
        return UNKNOWN, "it is not running"
    if view.target_steps is None:
        return UNKNOWN, "not known until it has begun"
    if step_s is None or view.state == "starting":
        return UNKNOWN, "not known before a step is measured"
    steps = max(0, view.target_steps - view.last_step)
    measured = min(RECENT_STEPS, len(view.steps))
    return (duration(steps * step_s), f"estimated: {counted(steps, 'step')} as long as the last {measured}")


def event_rows(events: Sequence[Event]) -> list[dict[str, str]]:
    """A row per event, the newest first, with the time since the first event."""
    if not events:
        return []
    first = events[0].time
    return [
        {
            "time (UTC)": event.time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"),
            "after": duration((event.time - first).total_seconds()),
            "what": event.kind.replace("_", " "),
            "rank": "run" if event.rank is None else str(event.rank),
            "node": event.node,
            "words": format_bytes(event.words),
        }
        for event in reversed(events)
    ]


def events_html(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows of events as an HTML table."""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in rows[0])
    cells = (
        "".join(
            f"<td{WIDE if name == 'words' else NARROW}>{html.escape(text)}</td>" for name, text in row.items()
        )
        for row in rows
    )
    return table_html(head, [f"<tr>{cell}</tr>" for cell in cells])


def checkpoint_rows(view: RunView, now: datetime) -> list[dict[str, Any]]:
    """A row per complete checkpoint, the newest first."""
    return [
        {
            "step": exact(checkpoint.step),
            "size": size(checkpoint.bytes),
            "age": duration(max(0.0, (now - checkpoint.time).total_seconds())),
            "role": ", ".join(
                filter(
                    None,
                    (
                        "the run goes on from here" if checkpoint.newest else "",
                        f"best {checkpoint.best_by}" if checkpoint.best_by else "",
                    ),
                )
            )
            or "kept",
        }
        for checkpoint in reversed(view.checkpoints)
    ]
