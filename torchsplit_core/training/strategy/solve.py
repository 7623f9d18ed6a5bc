"""A strategy request to its outcome."""

from __future__ import annotations

import time

from torchsplit_core.training.strategy.across.search import AcrossSearch, Stock
from torchsplit_core.training.strategy.beside import BesideSearch
from torchsplit_core.training.strategy.candidate import candidate
from torchsplit_core.training.strategy.fixes import check_fixes, check_fixes_of_any
from torchsplit_core.training.strategy.machines import Machine, read_fleet
from torchsplit_core.training.strategy.mixed_outcome import mixed_outcome
from torchsplit_core.training.strategy.search import EqualSearch, Found
from torchsplit_core.training.strategy.space import Space
from torchsplit_core.training.strategy.unequal import Entry, MixedSearch
from torchsplit_core.training.strategy.words import best_words, lack_words, refusals, smallest_words
from torchsplit_core.values.errors import InputFault, quoted
from torchsplit_core.values.progress import Progress, ignore_progress
from torchsplit_core.values.strategy.outcome import StrategyOutcome
from torchsplit_core.values.strategy.request import SourceSizes, StrategyRequest

MOST_DEVICES = 2**17
"""Of a fleet."""
FIRST_SHARE, COPIES_SHARE = 0.5, 0.9
"""Of the time: until then pipelines across entries are searched first, for they may rule copies out; and copies."""
MOST_ENTRIES = 8
"""Of a fleet: every set of them is a way to train."""


def strategy(request: StrategyRequest, *, progress: Progress = ignore_progress) -> StrategyOutcome:
    """The fastest choices that fit, with what was refused and why.

    Raises InputFault for sizes that do not go together, unknown GPUs, links of 0, a precision that a card lacks and
    fixes that contradict.
    """
    started = time.monotonic()
    model = request.model
    if isinstance(model, SourceSizes):
        raise InputFault(
            "model.kind",
            f"is {quoted(model.kind)}: a traced model is planned from its graph (workflow.strategy)",
            "Give the model's layers, hidden, heads, kv_heads, ffn, vocab and sequence.",
        )
    machines = read_fleet(request.fleet, request.training.precision)
    devices = sum(machine.devices for machine in machines)
    if devices > MOST_DEVICES:
        raise InputFault(
            "fleet",
            f"has {devices} devices, more than the {MOST_DEVICES} that are planned at once",
            "Plan a part of it.",
        )
    sizes, job = model.transformer(), request.training.job()
    spaces = [Space(sizes, job, machine.cluster.gpus_per_node, request.fix) for machine in machines]
    if len(machines) > 1:
        check_fixes_of_any(spaces, [machine.devices for machine in machines])
        return _unequal(machines, spaces, request, started, progress)
    check_fixes(spaces[0], devices)
    return _equal(machines[0], spaces[0], request.top_k, started, progress)


def _unequal(
    machines: tuple[Machine, ...],
    spaces: list[Space],
    request: StrategyRequest,
    started: float,
    progress: Progress,
) -> StrategyOutcome:
    if len(machines) > MOST_ENTRIES:
        raise InputFault(
            "fleet",
            f"has {len(machines)} entries, more than the {MOST_ENTRIES} that are planned at once",
            "Join equal ones.",
        )
    model, job = spaces[0].model, spaces[0].job
    progress(0.0, f"{len(machines)} kinds of nodes, pipelines across them")
    entries = tuple(Entry(machine, space) for machine, space in zip(machines, spaces, strict=True))
    limit = request.solver.time_limit_s
    across = AcrossSearch(Stock([entry.search for entry in entries]))
    across.run(started + FIRST_SHARE * limit)
    progress(0.5, "copies of the model")
    search = MixedSearch(entries, model, job.global_batch, started + COPIES_SHARE * limit, across.least_s)
    found = search.run(request.top_k)
    known = found.best[0].seconds if found.best else float("inf")
    across.run(started + limit, known, to_the_end=True)
    progress(0.8, "groups beside each other")
    beside = BesideSearch(entries, across.stock)
    beside.run(started + limit, min(known, across.least_s))
    return mixed_outcome(found, across, beside, entries, request.top_k, started)


def _equal(machine: Machine, space: Space, top_k: int, started: float, progress: Progress) -> StrategyOutcome:
    search = EqualSearch(machine, space)
    progress(0.0, f"{machine.devices} devices")
    found = search.best(machine.devices, top_k)
    used = machine.devices
    if not found.best:
        # Where the devices do not divide, the most that do are used.
        used = next((count for count in range(machine.devices - 1, 0, -1) if search.fits(count)), 0)
        if not used:
            return _nothing(search, machine, found, started)
        progress(0.5, f"{used} of {machine.devices} devices")
        found = search.best(used, top_k)
    return StrategyOutcome(
        "optimal",
        tuple(
            candidate(space.model, machine.device, space.job, choices, step) for choices, step in found.best
        ),
        found.considered,
        refusals(found.refused),
        best_words(found.best, machine.devices, used),
        found.best[0][1].seconds,
        _statistics(found, started),
    )


def _nothing(search: EqualSearch, machine: Machine, found: Found, started: float) -> StrategyOutcome:
    """Proven: nothing fits. What is missing, and the smallest fleet of such nodes that would do."""
    nearest, missing = search.nearest(machine.devices)
    said = f"No choice fits on {machine.devices} × {machine.type}"
    if nearest is None:
        said += ": none for all of them divides the model and the batch"
    else:
        said += f": {lack_words(nearest, missing)}, which is the least"
    said += f". {smallest_words(search)}"
    statistics = _statistics(found, started)
    return StrategyOutcome(
        "infeasible", (), found.considered, refusals(found.refused), f"{said}.", None, statistics
    )


def _statistics(found: Found, started: float) -> dict[str, str | int | float]:
    return {"reckoned": found.reckoned, "seconds": time.monotonic() - started}
