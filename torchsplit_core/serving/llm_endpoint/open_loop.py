"""Stages of rates sent to an endpoint, each request when it is due, whatever has been answered by then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from torchsplit_core.serving.llm_endpoint.client import EndpointClient, StreamedAnswer
from torchsplit_core.simulation.arrivals import arrival_times_ms
from torchsplit_core.simulation.validate import check_arrivals
from torchsplit_core.values import InputFault, MmppArrivals, TraceArrivals
from torchsplit_core.values.simulation.request import Arrivals

MOST_REQUESTS = 100_000
"""Requests of a measurement."""
WAKE_EARLY_S = 0.002
"""Timers of an event loop are good to a millisecond; the rest is spent looking."""


@dataclass(frozen=True, slots=True)
class LoadStage:
    """Requests of one rate: `times_s` from the start of the stage, which takes `duration_s`. `rate_rps` was asked."""

    rate_rps: float
    duration_s: float
    times_s: tuple[float, ...]


def load_stage(
    arrivals: Arrivals, rate_rps: float, duration_s: float, requests: int | None, seed: int
) -> LoadStage:
    """The arrivals of a stage: `requests` of them, or those within `duration_s`. Raises InputFault."""
    check_arrivals("--arrivals", arrivals, 1)
    if isinstance(arrivals, TraceArrivals):
        most = len(arrivals.times_s)
    else:
        most = requests or int(rate_rps * duration_s * 1.5) + 100
    if most > MOST_REQUESTS + 100:
        problem = f"makes {most:,} requests, above the {MOST_REQUESTS:,} of a measurement"
        raise InputFault("--rate", problem, "Use a smaller --rate, --duration-s or --requests.")
    if isinstance(arrivals, MmppArrivals):
        check_arrivals("--arrivals", arrivals, most)
    due = arrival_times_ms(arrivals, most, np.random.default_rng([seed]), 1.0) / 1e3
    due = due[:requests] if requests else due[due <= duration_s]
    if not len(due):
        problem = f"is {duration_s:g}, and no request is due in that time"
        raise InputFault("--duration-s", problem, "Measure for longer, or raise --rate.")
    return LoadStage(rate_rps, float(due[-1]) if requests else duration_s, tuple(map(float, due)))


@dataclass(frozen=True, slots=True)
class StageAnswers:
    """The answers of a stage in order of arrival; `began_s` is its start on the clock of the answers."""

    stage: LoadStage
    began_s: float
    answers: tuple[StreamedAnswer, ...]


async def run_stages(
    client: EndpointClient,
    stages: Sequence[LoadStage],
    request: Callable[[int], tuple[bytes, int]],
    on_progress: Callable[[float, int, int], object] = lambda at_s, sent, answered: None,
) -> list[StageAnswers]:
    """Send the stages one after the other, the engine running on, then wait for the last answer.

    `request` makes the body of a request from its index, and the output tokens that it asks for. `on_progress` gets
    seconds since the start, requests sent and requests answered.
    """
    tasks: list[list[asyncio.Task[StreamedAnswer]]] = []
    sent = answered = 0

    def count(task: asyncio.Task[StreamedAnswer]) -> None:
        nonlocal answered
        answered += 1

    began_s = start_s = client.clock()
    starts = []
    for stage in stages:
        starts.append(start_s)
        tasks.append([])
        for time_s in stage.times_s:
            # Made before it is due: the time to make it is no part of an answer's.
            body, output_tokens = request(sent)
            due_s = start_s + time_s
            await _wait_until(client, due_s)
            task = asyncio.create_task(client.complete(body, output_tokens, due_s))
            task.add_done_callback(count)
            tasks[-1].append(task)
            sent += 1
            on_progress(client.clock() - began_s, sent, answered)
        start_s += stage.duration_s
    pending = {task for group in tasks for task in group}
    while pending:
        _, pending = await asyncio.wait(pending, timeout=0.5)
        on_progress(client.clock() - began_s, sent, answered)
    return [
        StageAnswers(stage, start, tuple(task.result() for task in group))
        for stage, start, group in zip(stages, starts, tasks, strict=True)
    ]


async def _wait_until(client: EndpointClient, due_s: float) -> None:
    while (early := due_s - client.clock()) > 0:
        await asyncio.sleep(max(0.0, early - WAKE_EARLY_S))
    # Let the loop send and receive even where the next is due already.
    await asyncio.sleep(0)
