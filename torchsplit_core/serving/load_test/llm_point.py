"""Measures an engine on cores of this host as a point of plans: the largest rate at which it keeps its limits.

1. Load the engine until its steps show what they take: requests one by one, then several at once.
2. Fit a line to its own steps, and simulate the largest rate that surely keeps the limits.
3. Send that rate. If a limit breaks, fit to the steps of this load, and send the lesser of the simulated rate and a
   part of the last. Without limits the rate is that at which requests that are all there at once are completed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchsplit_core.engine_plans.engine_figures import EngineRequests, engine_rate, planned_engine
from torchsplit_core.hardware import discover_host
from torchsplit_core.serving.device_binding import bind_cores
from torchsplit_core.serving.frontend.slice_locks import lock_devices
from torchsplit_core.serving.llm_endpoint.address import LlmEndpoint, parse_endpoint
from torchsplit_core.serving.llm_endpoint.client import StreamedAnswer
from torchsplit_core.serving.llm_endpoint.rows import problem_text
from torchsplit_core.serving.llm_endpoint.token_load import TokenLoad, send_tokens
from torchsplit_core.serving.llm_engine.process import LlmEngineProcess, llm_engine
from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings
from torchsplit_core.serving.llm_engine.step_fit import fit_step_line
from torchsplit_core.serving.llm_engine.step_log import LoggedStep
from torchsplit_core.serving.load_test.comparison import WARM_UP
from torchsplit_core.serving.pinning import off_cores
from torchsplit_core.serving.plan import BoundSlice
from torchsplit_core.simulation.arrivals import arrival_times_ms, offered_rps
from torchsplit_core.simulation.continuous.request_tokens import request_tokens
from torchsplit_core.simulation.output_statistics import percentile
from torchsplit_core.values import (
    CPU,
    EngineServer,
    InputFault,
    LlmPoint,
    LlmPoints,
    Progress,
    ignore_progress,
)

LEAST_BURST, BURST = 4, 24
"""Requests at once, and as many one by one, that show first what steps take; fewer where one alone takes long."""
LEAST_REQUESTS = 50
"""Of a load: fewer say little of a 95th percentile."""
MOST_TRIES = 8
LESS = 0.8
"""Of the last rate, at most, where a limit broke at it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a load gave: completed requests/s, and the limited percentile of its times (ms)."""

    rate_rps: float
    ttft_ms: float
    tpot_ms: float | None

    def keeps(self, requests: EngineRequests) -> bool:
        """Whether both limits hold."""
        ttft, tpot = requests.limits
        return (ttft is None or self.ttft_ms <= ttft) and (
            tpot is None or self.tpot_ms is None or self.tpot_ms <= tpot
        )


def measure_points(
    settings: LlmEngineSettings,
    requests: EngineRequests,
    core_counts: Sequence[int],
    seconds: float,
    progress: Progress = ignore_progress,
) -> LlmPoints:
    """A point for each number of cores, one after the other; see `measure_point`. Raises InputFault."""
    places = [bind_cores(count) for count in core_counts]
    points: list[LlmPoint] = []
    for place in places:
        done = len(points)

        def report(share: float, text: str, done: int = done) -> None:
            progress((done + share) / len(places), text)

        points.append(measure_point(settings, place, requests, seconds, report))
    host = discover_host()
    return LlmPoints(
        settings.source, f"{host.cpu_name}, {host.cpu_cores} cores",
        requests.prompt_tokens, requests.output_tokens, tuple(points),
        requests.max_ttft_ms, requests.max_tpot_ms, requests.percentile,
    )  # fmt: skip


def measure_point(
    settings: LlmEngineSettings,
    place: BoundSlice,
    requests: EngineRequests,
    seconds: float,
    progress: Progress,
) -> LlmPoint:
    """The point of the engine on the cores of `place`, each of its loads taking about so many seconds.

    Raises InputFault where the engine does not start, a request does not fit, or no rate keeps the limits.
    """
    settings = replace(settings, threads=len(place.cores), cores=place.cores)
    with lock_devices((place,)), off_cores(place.cores):
        progress(0.0, f"starting the engine on {place.profile}")
        with llm_engine(settings) as engine:
            return _EngineUnderLoad(engine, settings, requests, progress).point(place, seconds)


class _EngineUnderLoad:
    """An engine that runs, and the steps to which its line is fitted."""

    def __init__(
        self,
        engine: LlmEngineProcess,
        settings: LlmEngineSettings,
        requests: EngineRequests,
        progress: Progress,
    ) -> None:
        self.engine, self.requests, self.progress = engine, requests, progress
        self.endpoint: LlmEndpoint = parse_endpoint(engine.url, settings.name)
        limits = engine.engine()
        self.server = EngineServer(
            "engine", settings.name, "whole", limits["max_num_seqs"], limits["max_num_batched_tokens"],
            limits["kv_blocks"], (), block_tokens=limits["block_tokens"], reserve_full_prompt=False,
            max_model_len=limits["max_model_len"],
        )  # fmt: skip
        self.steps: list[LoggedStep] = []

    def point(self, place: BoundSlice, seconds: float) -> LlmPoint:
        """Raises InputFault where no rate keeps the limits."""
        self.progress(0.1, "timing steps")
        alone_s = self._alone_s()
        count = min(BURST, max(LEAST_BURST, math.ceil(seconds / alone_s)))
        self._send([alone_s * number for number in range(count)])
        alone = tuple(self.steps)
        self._send([0.0] * count)
        limited = any(limit is not None for limit in self.requests.limits)
        measured = self._within_limits(seconds, alone) if limited else self._at_once(seconds)
        point = LlmPoint(
            CPU, place.profile, measured.rate_rps, engine=planned_engine(self._fitted(), tensor_parallel=1)
        )
        # Times at the capacity are of the queue that the load has made.
        return replace(point, ttft_ms=measured.ttft_ms, tpot_ms=measured.tpot_ms) if limited else point

    def _alone_s(self) -> float:
        """Seconds of a request alone, after one that loads what is loaded late. Its steps are not counted."""
        for _ in range(2):
            (answer,) = self._send([0.0])
        self.steps.clear()
        return answer.token_times_s[-1] - answer.due_s

    def _fitted(self) -> EngineServer:
        return replace(self.server, step=(fit_step_line(self.steps, robust=True).line,))

    def _within_limits(self, seconds: float, alone: Sequence[LoggedStep]) -> Measured:
        """The last load, whose steps with those of requests `alone` are left to be fitted to: prompts in a step with
        many others read each other's keys on a CPU, which no line has, and a load within its limits has few of these.
        """
        most = math.inf
        for number in range(MOST_TRIES):
            largest = engine_rate(self._fitted(), self.requests)
            if largest.low is None:
                raise _no_rate(self.requests, largest.alone.ttft_ms, largest.alone.tpot_ms)
            rate = min(largest.low.rate_rps, most)
            self.progress(0.2 + 0.8 * number / MOST_TRIES, f"sending {rate:.3g} requests/s")
            self.steps = [*alone]
            measured = self._figures(self._send(self._due(rate, seconds, number)))
            if measured.keeps(self.requests):
                return measured
            most = LESS * rate
        raise _no_rate(self.requests, measured.ttft_ms, measured.tpot_ms, f" at {rate:.3g} requests/s")

    def _due(self, rate_rps: float, seconds: float, number: int) -> list[float]:
        """When the requests of load `number` are due, in seconds from its start."""
        count = max(LEAST_REQUESTS, math.ceil(rate_rps * seconds))
        base = offered_rps(self.requests.arrivals)
        assert base is not None
        rng = np.random.default_rng([self.requests.seed, number])
        due = arrival_times_ms(self.requests.arrivals, count, rng, rate_rps / base) / 1e3
        # Of few requests a draw has another rate.
        return list(map(float, due * (count / rate_rps / due[-1])))

    def _at_once(self, seconds: float) -> Measured:
        rate = engine_rate(self._fitted(), self.requests).low
        count = max(LEAST_REQUESTS, math.ceil(seconds * (rate.rate_rps if rate else 0.0)))
        self.progress(0.3, f"completing {count} requests that are all there at once")
        return self._figures(self._send([0.0] * count))

    def _send(self, times_s: Sequence[float]) -> tuple[StreamedAnswer, ...]:
        """The answers; their steps are added to the others. Raises InputFault where one failed."""
        count = len(times_s)
        lengths = self.requests.simulation("llm", (self.server,), count).models[0]
        tokens = request_tokens(lengths, (self.server,), count, (self.requests.seed, len(self.steps)))
        load = TokenLoad(tuple(times_s), tuple(tokens.prompts.tolist()), tuple(tokens.outputs.tolist()))
        self.engine.take_steps()
        answers = send_tokens(self.endpoint, load, self.requests.seed)
        self.steps += self.engine.take_steps()
        problems = [answer.problem for answer in answers if answer.problem]
        if problems:
            words = problem_text({problem: problems.count(problem) for problem in problems})
            raise InputFault(
                "the engine", f"failed {len(problems)} of {count} requests ({words})", _LESS_LOAD
            )
        return answers

    def _figures(self, answers: Sequence[StreamedAnswer]) -> Measured:
        last_s = max(answer.token_times_s[-1] for answer in answers)
        counted = answers[math.floor(WARM_UP * len(answers)) :]
        tpot = [
            1e3 * (answer.token_times_s[-1] - answer.token_times_s[0]) / (answer.tokens - 1)
            for answer in counted
            if answer.tokens > 1
        ]
        ttft = [1e3 * (answer.token_times_s[0] - answer.due_s) for answer in counted]
        percent = self.requests.percentile
        return Measured(
            len(answers) / (last_s - min(answer.due_s for answer in answers)),
            percentile(np.array(ttft), percent),
            percentile(np.array(tpot), percent) if tpot else None,
        )


_LESS_LOAD = "Shorten the requests, or give the engine a larger cache (--kv-blocks)."


def _no_rate(
    requests: EngineRequests, ttft_ms: float, tpot_ms: float | None, at: str = " alone"
) -> InputFault:
    ttft, tpot = requests.limits
    name, limit, taken_ms = "--max-tpot", tpot, tpot_ms or 0.0
    if ttft is not None and ttft_ms > ttft:
        name, limit, taken_ms = "--max-ttft", ttft, ttft_ms
    return InputFault(
        name,
        f"is {limit:g}, and p{requests.percentile:g} of the requests took {taken_ms:.4g} ms{at}",
        "Give more, or more cores.",
    )
