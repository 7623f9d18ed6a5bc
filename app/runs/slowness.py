"""Which rank of a run the others wait for, by what it does without waiting itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchsplit_core.pictures.numbers import counted, exact, short
from torchsplit_core.training.monitor import Rank, RunView

WAITING = "waiting for stages"
"""The part that only a pipeline's ranks have."""
NOTABLE = 1.1
"""A rank is slow from so many times the fastest one's seconds on: `--balance` acts from a tenth on."""


def busy_parts(rank: Rank) -> tuple[str, ...]:
    """The parts of a step in which a rank waits for no other.

    A backward pass has the gradient reduction, but in a pipeline, whose passes are timed without their waits.
    """
    return ("data", "forward", "backward") if WAITING in (rank.parts_s or {}) else ("data", "forward")


def describe_busy(rank: Rank) -> str:
    """The names of these parts: "data and forward"."""
    *first, last = busy_parts(rank)
    return f"{', '.join(first)} and {last}"


def busy_seconds(ranks: Sequence[Rank]) -> dict[int, float]:
    """Seconds of a step by rank in which it waits for no other; without ranks whose parts are not known."""
    return {
        rank.rank: sum((rank.parts_s or {}).get(part, 0.0) for part in busy_parts(rank))
        for rank in ranks
        if rank.parts_s
    }


def block_seconds(ranks: Sequence[Rank]) -> dict[int, float]:
    """Seconds of a micro-batch by rank in its blocks; without ranks that know none of them."""
    known = {rank.rank: [spent for spent in rank.blocks_s.values() if spent is not None] for rank in ranks}
    return {rank: sum(spent) for rank, spent in known.items() if spent}


def slowest(seconds: Mapping[int, float]) -> int | None:
    """The rank that takes notably longer than the fastest; None where none does."""
    if len(seconds) < 2:
        return None
    most = max(seconds, key=seconds.__getitem__)
    return most if seconds[most] >= NOTABLE * min(seconds.values()) > 0 else None


def describe_window(ranks: Sequence[Rank]) -> str:
    """The steps over which the seconds of these ranks are means, as a sentence."""
    counts = {rank.averaged_steps for rank in ranks}
    if (known := {count for count in counts if count}) != counts:
        return "Means over the steps of about the last second before a rank's last report."
    fewest, most = min(known), max(known)
    steps = counted(most, "step") if fewest == most else f"{exact(fewest)} to {exact(most)} steps"
    return f"Means over the last {steps} before a rank's last report."


def describe_slowest(seconds: Mapping[int, float], what: str) -> str:
    """Which rank is slow and how much, as a sentence; "" where none is."""
    rank = slowest(seconds)
    if rank is None:
        return ""
    ratio = seconds[rank] / min(seconds.values())
    return f"Rank {rank} is slowest: {short(seconds[rank], 's')} {what}, {short(ratio)} times the fastest."


def name_rank(view: RunView, rank: int, *, slow: bool) -> str:
    """A rank with its stages, where the run says how it is divided, and whether it is the slowest."""
    choices = view.facts.get("choices")
    sizes = choices if isinstance(choices, dict) else {}
    data, pipeline, chunks = (sizes.get(name, 1) for name in ("data", "pipeline", "interleave"))
    text = f"rank {rank}"
    if all(isinstance(size, int) and size > 0 for size in (data, pipeline, chunks)) and pipeline > 1:
        # Rank r has stage r div data, and of chunks every pipeline-th from there (docs: Pipelines).
        stages = [rank // data % pipeline + chunk * pipeline for chunk in range(chunks)]
        text += f", stage{'s' * (chunks > 1)} {', '.join(map(str, stages))}"
    return f"{text}, slowest" if slow else text
