"""Each simulated request of engines as a row: when it came, began, and had its first and last token."""

from __future__ import annotations

from collections.abc import Iterator

from torchsplit_core.simulation.continuous.engine_model import prepare_engine_model
from torchsplit_core.values import SimulationRequest

COLUMNS = (
    *("model", "replication", "request", "arrival_s", "prompt_tokens", "output_tokens"),
    *("start_s", "first_token_s", "last_token_s"),
)
"""Replications and requests count from 0; seconds are those of the arrivals."""


def request_rows(request: SimulationRequest) -> Iterator[tuple[str | int | float, ...]]:
    """Rows of COLUMNS of every model with engines, with the draws of `simulate`, the warm-up included."""
    with_engines = {engine.model for engine in request.engines}
    for number, model in enumerate(request.models):
        if model.name not in with_engines:
            continue
        prepared = prepare_engine_model(request, number)
        for replication in range(prepared.replications):
            simulated = prepared.run(replication)
            columns = (
                simulated.arrivals_s,
                simulated.tokens.prompts,
                simulated.tokens.outputs,
                simulated.run.start_s,
                simulated.run.first_token_s,
                simulated.run.last_token_s,
            )
            rows = zip(*(column.tolist() for column in columns), strict=True)
            yield from ((model.name, replication, place, *row) for place, row in enumerate(rows))
