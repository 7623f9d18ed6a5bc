"""How to train a model on a fleet: from its sizes, or from its graph and torch's own trackers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchsplit_core.values import InputFault, Profile, Progress, ignore_progress
from torchsplit_core.values.strategy.outcome import StrategyCandidate, StrategyOutcome
from torchsplit_core.values.strategy.request import SourceSizes, StrategyRequest
from torchsplit_core.values.training import SHARDED, ParallelConfig

if TYPE_CHECKING:
    from torchsplit_core.graph.torch_graph import TorchGraph
    from torchsplit_core.strategy.graph_model.solve import HostFigures, Tracker

MAX_CANDIDATES = 512
"""Candidates among which one of use is looked for."""
MOST_SHARDS_TRACKED = 64
"""Torch's tracker follows up to so many devices; beyond, what a device holds differs by the states' shards alone."""


def strategy(
    request: StrategyRequest,
    *,
    graph: TorchGraph | None = None,
    profile: Profile | None = None,
    track: bool = True,
    trust: bool = False,
    progress: Progress = ignore_progress,
) -> StrategyOutcome:
    """The fastest ways to train a model on a fleet. Raises InputFault for a request that makes no sense.

    A candidate for which no file is written says why; those that are written and trained come first where the
    estimate does not tell them from the fastest.
    Of a model of kind source: its graph (traced where none is given), its profile, and whether the best is followed
    by torch's memory tracker, which executes the model in a child.
    """
    if not isinstance(request.model, SourceSizes):
        return _search_by_sizes(request, progress)
    from torchsplit_core.strategy.graph_model.solve import search_graph_strategy
    from torchsplit_core.workflow.steps import trace

    source = request.model.source
    if graph is None:
        graph = trace(source, trust=trust, progress=lambda share, text: progress(0.3 * share, text))
    outcome = search_graph_strategy(
        request,
        graph,
        profile,
        tracker=_tracker(request, graph, trust) if track else None,
        host=_host_figures(request, trust, measure=track),
        progress=lambda share, text: progress(0.3 + 0.7 * share, text),
    )
    return _usable_first(request, outcome, outcome.candidates)


def strategy_script(
    request: StrategyRequest,
    candidate: StrategyCandidate,
    *,
    graph: TorchGraph | None = None,
    trust: bool = False,
) -> str:
    """A candidate of the request's outcome as a plain PyTorch file.

    Raises InputFault for a candidate that no file is written for, with its reason.
    """
    from torchsplit_core.strategy.export.script import TracedBlocks, script

    if not isinstance(request.model, SourceSizes):
        return script(request, candidate)
    from torchsplit_core.strategy.graph_model.solve import stage_starts
    from torchsplit_core.workflow.steps import trace

    graph = graph or trace(request.model.source, trust=trust)
    host = _host_figures(request, trust, measure=False)
    blocks, starts = stage_starts(request, graph, candidate, host)
    return script(request, candidate, TracedBlocks(blocks, starts), trust=trust)


def _search_by_sizes(request: StrategyRequest, progress: Progress) -> StrategyOutcome:
    """The outcome for sizes alone; on equal nodes more candidates are looked through until one is of use."""
    from torchsplit_core.strategy.search import search_strategy as solve

    outcome = solve(request, progress=progress)
    candidates, wanted = outcome.candidates, request.top_k
    while (
        len(request.fleet) == 1
        and len(candidates) == wanted < MAX_CANDIDATES
        and candidates[-1].seconds_per_step <= candidates[0].high_s
        and not any(_is_usable(request, candidate) for candidate in candidates)
    ):
        wanted = min(8 * wanted, MAX_CANDIDATES)
        candidates = solve(replace(request, top_k=wanted), progress=progress).candidates
    return _usable_first(request, outcome, candidates)


def _usable_first(
    request: StrategyRequest, outcome: StrategyOutcome, examined: tuple[StrategyCandidate, ...]
) -> StrategyOutcome:
    """The outcome whose first candidates are those of use within the interval of the fastest.

    The fastest of use is among them although more than `top_k` others are faster.
    """
    from torchsplit_core.strategy.export.exportability import not_exportable
    from torchsplit_core.strategy.search.descriptions import describe_choices, describe_slowdown

    shown = outcome.candidates
    if not shown:
        return outcome
    fastest = shown[0]
    near = [
        candidate
        for candidate in examined
        if candidate.seconds_per_step <= fastest.high_s and _is_usable(request, candidate)
    ]
    if near and near[0] not in shown:
        shown = (*shown[:-1], near[0])
    ranked = sorted(shown, key=lambda candidate: candidate not in near)
    message = outcome.message
    if ranked[0] is not fastest:
        loss = ranked[0].seconds_per_step / fastest.seconds_per_step - 1
        message += (
            f" First stands {describe_choices(ranked[0].choices)}, which can be exported and trained: it "
            f"{describe_slowdown(loss)}, which is within the interval of the estimate."
        )
    marked = tuple(
        replace(candidate, not_exportable=not_exportable(request, candidate)) for candidate in ranked
    )
    return replace(outcome, candidates=marked, message=message)


def _is_usable(request: StrategyRequest, candidate: StrategyCandidate) -> bool:
    """Whether a file is written for a candidate, and `train` runs it."""
    from torchsplit_core.strategy.export.exportability import not_exportable
    from torchsplit_core.training.fitted_strategy import fit_to_world_size, run_strategy_of

    if not_exportable(request, candidate) is not None:
        return False
    try:
        fit_to_world_size(
            run_strategy_of(candidate, precision=request.training.precision), candidate.choices.devices
        )
    except InputFault:
        return False
    return True


def _host_figures(request: StrategyRequest, trust: bool, *, measure: bool) -> HostFigures | None:
    """What was measured of this host, for a fleet of cores that it could be; None for any other.

    With `measure` its rates are measured where they are not known yet, and so is the fetching of samples.
    """
    from torchsplit_core.profiling.host_rates import host_rates, saved_rates
    from torchsplit_core.profiling.training_step.measurement import sample_seconds
    from torchsplit_core.strategy.graph_model.solve import HostFigures
    from torchsplit_core.strategy.search.machines import host_threads
    from torchsplit_core.workspace.store import default_root

    assert isinstance(request.model, SourceSizes)
    threads = host_threads(request.fleet)
    if threads is None:
        return None
    rates = host_rates(default_root(), threads) if measure else saved_rates(default_root(), threads)
    if rates is None:
        return None
    sample_s = sample_seconds(request.model.source, trust=trust) if measure else 0.0
    return HostFigures(rates, sample_s)


def _tracker(request: StrategyRequest, graph: TorchGraph, trust: bool) -> Tracker:
    """What follows a choice in torch; None for choices that its trackers do not know."""
    from torchsplit_core.profiling.training_step.measurement import track_peak
    from torchsplit_core.strategy.graph_model.blocks import chain_of
    from torchsplit_core.strategy.graph_model.memory import shards

    assert isinstance(request.model, SourceSizes)
    source, training = request.model.source, request.training
    blocks, per_node = chain_of(graph).blocks, request.fleet[0].gpus_per_node
    half = training.precision in ("bf16", "fp16")

    def follow(choices: ParallelConfig) -> int | None:
        gathered = choices.shard in SHARDED
        group = shards(choices, per_node) if gathered else 1
        known = choices.pipeline == 1 and choices.offload == "none" and choices.recompute != "selective"
        # Autocast's copies are made by casts that the trackers do not see; accumulation keeps earlier gradients.
        once = training.global_batch == choices.data * choices.micro_batch
        if not known or not once or choices.shard == "zero1" or (half and not gathered):
            return None
        if group > MOST_SHARDS_TRACKED or source.endswith(".pt2"):
            return None
        try:
            return track_peak(
                source,
                choices.micro_batch,
                shards=group,
                reshard=choices.shard != "zero2",
                half=half,
                recompute=choices.recompute == "full",
                blocks=blocks,
                optimizer=training.optimizer,
                trust=trust,
            )
        except InputFault:
            # Torch cannot follow every model; the figures reckoned from the graph stand for themselves.
            return None

    return follow
