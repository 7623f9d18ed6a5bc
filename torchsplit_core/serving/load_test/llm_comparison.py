"""An LLM under load beside its simulation: times to a token, steps of its engines, and where they part."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchsplit_core.serving.llm_endpoint.client import StreamedAnswer
from torchsplit_core.serving.llm_endpoint.rows import problem_text
from torchsplit_core.serving.llm_engine.step_log import LoggedStep
from torchsplit_core.serving.load_test.comparison import (
    RATE_BAND,
    TIME_BAND,
    WARM_UP,
    exceeds_tolerance,
    three_digits,
)
from torchsplit_core.serving.load_test.llm_load import LlmTraffic
from torchsplit_core.simulation.continuous import EngineRun, run_engines
from torchsplit_core.simulation.output_statistics import percentile
from torchsplit_core.values import StepLine, TokenFigure
from torchsplit_core.values.serving.measurement import (
    Disagreement,
    MeasuredModel,
    MeasuredServer,
    MeasuredTimes,
    Measurement,
)


@dataclass(frozen=True, slots=True)
class LlmResult:
    """What a load of `duration_s` gave: answers, the engines' steps by id; ms of the idle way to the first token."""

    answers: tuple[StreamedAnswer, ...]
    steps: Mapping[str, Sequence[LoggedStep]]
    hop_ms: float
    duration_s: float


def simulate_traffic(traffic: LlmTraffic) -> EngineRun | None:
    """The simulation of these very requests; None where an engine's steps are not known."""
    if not traffic.simulated:
        return None
    load = traffic.load
    prompts, outputs = (np.array(tokens) for tokens in (load.prompt_tokens, load.output_tokens))
    return run_engines(traffic.engines, np.array(load.times_s), prompts, outputs, np.zeros_like(prompts))


def measured_llm(traffic: LlmTraffic, run: EngineRun | None, result: LlmResult) -> MeasuredModel:
    """Predicted beside measured."""
    answers = result.answers
    good = [answer for answer in answers if not answer.problem]
    began_s = answers[0].due_s - traffic.load.times_s[0]
    last_s = max((answer.token_times_s[-1] - began_s for answer in good), default=0.0)
    counted = [answer for answer in answers[_first_counted(len(answers)) :] if not answer.problem]
    longer = [answer for answer in counted if answer.tokens > 1]
    percent = traffic.llm.percentile
    predicted_ttft, predicted_tpot, responses = _predicted(traffic, run, result.hop_ms)
    offered = len(answers) / result.duration_s
    return MeasuredModel(
        traffic.name,
        offered,
        min(offered, traffic.planned.throughput_rps),
        len(good) / max(result.duration_s, last_s),
        responses,
        _times([1e3 * (answer.token_times_s[-1] - answer.due_s) for answer in counted]),
        result.hop_ms,
        len(answers) - len(good),
        # A stream that broke had begun with 200.
        tuple(sorted(Counter(0 if a.problem and a.status == 200 else a.status for a in answers).items())),
        percentile=percent,
        predicted_ttft_ms=predicted_ttft,
        measured_ttft_ms=_figure(
            [1e3 * (answer.token_times_s[0] - answer.due_s) for answer in counted], percent
        ),
        predicted_tpot_ms=predicted_tpot,
        measured_tpot_ms=_figure(
            [
                1e3 * (answer.token_times_s[-1] - answer.token_times_s[0]) / (answer.tokens - 1)
                for answer in longer
            ],
            percent,
        ),
    )


def _predicted(
    traffic: LlmTraffic, run: EngineRun | None, hop_ms: float
) -> tuple[TokenFigure | None, TokenFigure | None, MeasuredTimes]:
    """TTFT, TPOT and responses of the simulation with the way through the front; else of the plan's points."""
    if run is None:
        return traffic.planned.ttft_ms, traffic.planned.tpot_ms, MeasuredTimes()
    first = _first_counted(len(traffic.load.times_s))
    ttft, response = (times[first:] for times in (run.ttft_ms, run.response_ms))
    outputs = np.array(traffic.load.output_tokens[first:])
    tpot = (response - ttft)[outputs > 1] / (outputs[outputs > 1] - 1)
    percent = traffic.llm.percentile
    return (
        _figure((ttft + hop_ms).tolist(), percent),
        _figure(tpot.tolist(), percent),
        _times((response + hop_ms).tolist()),
    )


def _first_counted(requests: int) -> int:
    return math.floor(WARM_UP * requests)


def _times(values_ms: Sequence[float]) -> MeasuredTimes:
    if not values_ms:
        return MeasuredTimes()
    return MeasuredTimes(*(percentile(np.array(values_ms), percent) for percent in (50.0, 95.0, 99.0)))


def _figure(values_ms: Sequence[float], percent: float) -> TokenFigure | None:
    if not values_ms:
        return None
    value = percentile(np.array(values_ms), percent)
    times = _times(values_ms)
    return TokenFigure(value, p50=times.p50, p95=times.p95, p99=times.p99)


def measured_engines(
    traffic: LlmTraffic, run: EngineRun | None, result: LlmResult
) -> Iterator[MeasuredServer]:
    """Each engine of a model: its steps as its line has them, and as they were."""
    uses = {} if run is None else {use.entry: use for use in run.engines}
    for number, engine in enumerate(traffic.engines):
        log = result.steps.get(engine.id, ())
        times_ms = [1e3 * (step.end_s - step.start_s) for step in log]
        planned = [line_ms(engine.step, step) for step in log] if engine.step else []
        use = uses.get(number)
        yield MeasuredServer(
            engine.id,
            traffic.name,
            "whole",
            statistics.fmean(planned) if planned else None,
            statistics.fmean(times_ms) if times_ms else None,
            None if run is None else (0.0 if use is None else use.busy_s / result.duration_s),
            sum(times_ms) / 1e3 / result.duration_s,
            None if use is None else use.sequences / use.steps,
            statistics.fmean(step.running for step in log) if log else None,
            None,
        )


def line_ms(lines: Sequence[StepLine], step: LoggedStep) -> float:
    """What a step of this work takes by its lines, in ms."""
    return max(
        line.base_ms
        + line.prompt_token_ms * step.prompt_tokens
        + line.sequence_ms * step.sequences
        + line.context_token_ms * step.context_tokens
        + line.attention_ms * step.attention_pairs
        for line in lines
    )


def with_llms(
    measurement: Measurement, traffic: Sequence[LlmTraffic], results: Mapping[str, LlmResult]
) -> Measurement:
    """The measurement with the LLMs behind its batch models."""
    models: list[MeasuredModel] = []
    servers: list[MeasuredServer] = []
    disagreements: list[Disagreement] = []
    for item in traffic:
        run, result = simulate_traffic(item), results[item.name]
        models.append(measured_llm(item, run, result))
        of_model = list(measured_engines(item, run, result))
        servers += of_model
        disagreements += llm_disagreements(models[-1], of_model, result)
    return replace(
        measurement,
        models=(*measurement.models, *models),
        servers=(*measurement.servers, *servers),
        disagreements=(*measurement.disagreements, *disagreements),
    )


def llm_disagreements(
    model: MeasuredModel, engines: Sequence[MeasuredServer], result: LlmResult
) -> Iterator[Disagreement]:
    """Where an LLM's measured times part from the predicted ones: its steps, or what waits for them."""
    slow = False
    for engine in engines:
        planned, measured = engine.planned_batch_ms, engine.batch_ms
        if exceeds_tolerance(measured, planned, TIME_BAND):
            assert planned is not None and measured is not None
            slow = True
            words = (
                f"{model.name} on {engine.id}: its steps take {three_digits(measured)} ms, "
                f"{measured / planned - 1:+.0%} against {three_digits(planned)} ms by its step line"
            )
            yield Disagreement(model.name, "service", words, engine.id, engine.stage)
    if model.errors:
        problems = Counter(answer.problem for answer in result.answers if answer.problem)
        words = f"{model.name}: {model.errors} requests got no result ({problem_text(problems)})"
        yield Disagreement(model.name, "load", words)
    steps_known = any(engine.planned_batch_ms is not None for engine in engines)
    parts = [
        f"{name} {three_digits(measured.value)} ms against {three_digits(predicted.value)} predicted"
        for name, measured, predicted in (
            ("TTFT", model.measured_ttft_ms, model.predicted_ttft_ms),
            ("TPOT", model.measured_tpot_ms, model.predicted_tpot_ms),
        )
        if measured is not None
        and predicted is not None
        and exceeds_tolerance(measured.value, predicted.value, TIME_BAND)
        # A point is of its own rate, the most that is sent.
        and (steps_known or measured.value > predicted.value)
    ]
    if model.measured_rps < (1 - RATE_BAND) * model.predicted_rps:
        parts.append(f"{model.measured_rps:.4g} of {model.predicted_rps:.4g} requests/s")
    if parts and not slow:
        beside = "its steps take what was planned" if steps_known else "its steps are not known"
        words = f"{model.name}: {', '.join(parts)} (p{model.percentile:g}), and {beside}"
        yield Disagreement(model.name, "wait", words)
