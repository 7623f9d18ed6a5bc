"""The largest common factor on all rates at which every model keeps a percentile within its limit."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from torchsplit_core.simulation.arrivals import is_random, offered_rps
from torchsplit_core.simulation.capacity import capacity_rps
from torchsplit_core.simulation.continuous.engine_model import EngineModel
from torchsplit_core.simulation.output_statistics import mean, percentile, without_warmup
from torchsplit_core.simulation.replication import PreparedModel, replication_count, run_model
from torchsplit_core.values import HighestLoad, Progress, SimulationRequest

WITHIN = 1.01
"""Most ratio between the ends of the final interval."""
STEP = 0.8
"""Ratio of a trial to the one before that failed, until a trial holds."""
LEAST, MOST = 1e-6, 1e6
"""Range of trial factors, relative to the first."""


Steps = Generator[tuple[float, str], None, HighestLoad]
"""Yields progress (0 to 1, and a text) before each simulation of a model; returns the result."""


def find_max_load(
    request: SimulationRequest, prepared: Sequence[PreparedModel | EngineModel], progress: Progress
) -> HighestLoad:
    """Run the whole search and report its progress."""
    steps = search_max_load(request, prepared)
    while True:
        try:
            progress(*next(steps))
        except StopIteration as ended:
            max_load: HighestLoad = ended.value
            return max_load


def search_max_load(request: SimulationRequest, prepared: Sequence[PreparedModel | EngineModel]) -> Steps:
    """Search with the same draws for all trials: downward until a factor holds, then by bisection.

    The search goes downward because with waiting batches a lower load may have longer responses.
    """
    assert request.find is not None
    percent = request.find.percentile
    limited = [model for model in prepared if model.model.has_limit]
    tries = _LoadTrials(request, limited, percent)
    high = min(
        _capacity_rps(model) / (offered_rps(model.model.arrivals) or _capacity_rps(model))
        for model in limited
    )
    bounded = any(is_random(model.model.arrivals) for model in limited)
    low = None
    first = high
    if not bounded:
        # A trace ends, so a load above the capacity may keep the limit.
        while (yield from tries.keeps_all_limits(high)) and high < MOST * first:
            low, high = high, 2 * high
        if low == high / 2 and high >= MOST * first:
            return HighestLoad(percent, None, low, None, "every load that was tried keeps the limits")
    while low is None and high > LEAST * first:
        lower = STEP * high
        low, high = (lower, high) if (yield from tries.keeps_all_limits(lower)) else (None, lower)
    if low is None:
        return HighestLoad(percent, None, None, high, "no load that was tried keeps the limits")
    while high > WITHIN * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if (yield from tries.keeps_all_limits(middle)) else (low, middle)
    return HighestLoad(percent, low, low, high)


class _LoadTrials:
    """Whether every model keeps its limit at a factor; checks the model first that failed last."""

    def __init__(
        self, request: SimulationRequest, models: Sequence[PreparedModel | EngineModel], percent: float
    ) -> None:
        self.request, self.models, self.percent = request, list(models), percent
        self.tries = 0

    def keeps_all_limits(self, factor: float) -> Generator[tuple[float, str], None, bool]:
        self.tries += 1
        for place, model in enumerate(self.models):
            yield 1 - 0.9**self.tries, f"trying {factor:.4g} times the rates"
            if not self._keeps_limit(model, factor):
                self.models.insert(0, self.models.pop(place))
                return False
        return True

    def _keeps_limit(self, model: PreparedModel | EngineModel, factor: float) -> bool:
        offered = offered_rps(model.model.arrivals)
        if (
            is_random(model.model.arrivals)
            and offered is not None
            and offered * factor >= _capacity_rps(model)
        ):
            return False
        if isinstance(model, EngineModel):
            return self._engines_keep_limits(model, factor)
        percentiles = []
        for replication in range(replication_count(model, self.request.replications)):
            run = run_model(model, replication, factor)
            percentiles.append(
                percentile(without_warmup(run.response_ms, self.request.warmup_share), self.percent)
            )
        return mean(percentiles) <= (model.model.slo_ms or 0.0)

    def _engines_keep_limits(self, model: EngineModel, factor: float) -> bool:
        runs = [model.run(replication, factor) for replication in range(model.replications)]
        for limit, times in (
            (model.model.slo_ms, [run.response_ms for run in runs]),
            (model.model.max_ttft_ms, [run.ttft_ms for run in runs]),
            (model.model.max_tpot_ms, [run.tpot_ms for run in runs]),
        ):
            # Requests of one token have no time per token.
            percentiles = [percentile(values, self.percent) for values in times if len(values)]
            if limit is not None and percentiles and mean(percentiles) > limit:
                return False
        return True


def _capacity_rps(model: PreparedModel | EngineModel) -> float:
    return model.capacity_rps if isinstance(model, EngineModel) else capacity_rps(model)
