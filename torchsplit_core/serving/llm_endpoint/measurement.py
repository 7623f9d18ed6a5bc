"""An endpoint measured from its probe to the rows of its stages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import uvloop

from torchsplit_core.serving.llm_endpoint.address import LlmEndpoint
from torchsplit_core.serving.llm_endpoint.client import EndpointClient
from torchsplit_core.serving.llm_endpoint.open_loop import LoadStage, StageAnswers, run_stages
from torchsplit_core.serving.llm_endpoint.probe import EndpointFacts, endpoint_name, probe
from torchsplit_core.serving.llm_endpoint.prompts import PromptMaker
from torchsplit_core.serving.llm_endpoint.rows import StageFigures, problem_text, serving_row, stage_figures
from torchsplit_core.serving.protocol.file_limits import raise_file_limit
from torchsplit_core.values import InputFault, Progress, ignore_progress

Result = TypeVar("Result")

MOST_CONNECTIONS = 4096
"""Requests in flight, as far as the system allows so many open files."""
LATE_SHARE = 0.1
"""Of the mean time to the first token: sent later than that, the client is part of what was measured."""


@dataclass(frozen=True, slots=True)
class EndpointLoad:
    """Requests of `prompt_tokens` in and `output_tokens` out, at each stage's times; one seed, the same prompts."""

    stages: tuple[LoadStage, ...]
    prompt_tokens: int
    output_tokens: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class EndpointMeasurement:
    """Each stage's answers, figures (None: no answer) and row; `warnings` on what is not as it was asked."""

    stages: tuple[StageAnswers, ...]
    figures: tuple[StageFigures | None, ...]
    rows: tuple[dict[str, str], ...]
    warnings: tuple[str, ...]


def measure_endpoint(
    endpoint: LlmEndpoint,
    load: EndpointLoad,
    settings: Mapping[str, str],
    measured_on: str,
    progress: Progress = ignore_progress,
) -> EndpointMeasurement:
    """Probe the endpoint, load it, and make a row of each stage.

    `settings` are columns that the user gave; what the endpoint tells fills others. Raises InputFault for an endpoint
    that cannot be measured, or that answered nothing.
    """
    raise_file_limit(MOST_CONNECTIONS)
    whole_s = sum(stage.duration_s for stage in load.stages)
    total = sum(len(stage.times_s) for stage in load.stages)

    def report(at_s: float, sent: int, answered: int) -> None:
        progress(
            min(0.99, at_s / max(whole_s, 1e-9)),
            f"{at_s:.0f} of {whole_s:.0f} s, {answered} of {total} answered",
        )

    async def run() -> tuple[EndpointFacts, list[StageAnswers]]:
        client = EndpointClient(endpoint)
        try:
            progress(0.0, f"asking {endpoint.url}")
            facts = await probe(client, load.prompt_tokens, load.output_tokens)
            make = request_maker(client.endpoint, load, facts)
            return facts, await run_stages(client, load.stages, make, report)
        finally:
            client.close()

    facts, stages = _run_to_end(run)
    endpoint = replace(endpoint, chat=facts.chat)
    figures = tuple(map(stage_figures, stages))
    if not any(figures):
        problems: dict[str, int] = {}
        for answer in (answer for measured in stages for answer in measured.answers):
            problems[answer.problem] = problems.get(answer.problem, 0) + 1
        problem = (
            f"{endpoint.url} answered none of {sum(problems.values())} requests: {problem_text(problems)}"
        )
        raise InputFault("--endpoint", problem, "Lower --rate, or see the server's log.")
    columns = dict(facts.settings) | {"source": f"{endpoint_name(endpoint)}, {measured_on}"} | dict(settings)
    columns.setdefault("model", endpoint.model)
    rows = tuple(
        serving_row(number, measured, figure, columns, load.prompt_tokens, load.output_tokens, facts.notes)
        for number, (measured, figure) in enumerate(zip(stages, figures, strict=True))
    )
    return EndpointMeasurement(tuple(stages), figures, rows, (*facts.notes, *_warnings(load, figures)))


def _run_to_end(run: Callable[[], Coroutine[None, None, Result]]) -> Result:
    """The coroutine's result; from a thread of its own where this one runs a loop already, as notebooks do."""

    def in_runner() -> Result:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run())

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # An interrupt of the user ends the load at once in the main thread alone.
        return in_runner()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(in_runner).result()


def request_maker(
    endpoint: LlmEndpoint, load: EndpointLoad, facts: EndpointFacts
) -> Callable[[int], tuple[bytes, int]]:
    """Makes request `index` of a load: its body and the output tokens that it asks for."""
    prompts = PromptMaker(facts.words, load.seed)

    def make(index: int) -> tuple[bytes, int]:
        body = endpoint.body(prompts.text(index), load.output_tokens, until_length=facts.until_length)
        return body, load.output_tokens

    return make


def _warnings(load: EndpointLoad, figures: Sequence[StageFigures | None]) -> list[str]:
    """What is not as it was asked: failures, lengths, a client that came late."""
    warnings = []
    for number, figure in enumerate(figures):
        stage = f"stage {number}"
        if figure is None:
            warnings.append(f"{stage}: no request was answered, so it has no figures")
            continue
        if figure.problems:
            failed = figure.sent - figure.answered
            warnings.append(f"{stage}: {failed} of {figure.sent} failed: {problem_text(figure.problems)}")
        for name, mean, asked in (
            ("prompts", figure.prompt_tokens, load.prompt_tokens),
            ("answers", figure.output_tokens, load.output_tokens),
        ):
            if mean is not None and abs(mean - asked) > 0.02 * asked + 0.5:
                warnings.append(f"{stage}: {name} have {mean:.4g} tokens on average, {asked} were asked for")
        if figure.late_ms > LATE_SHARE * figure.ttft_ms.mean:
            warnings.append(
                f"{stage}: this client sent 1 in 100 requests {figure.late_ms:.3g} ms late or later, which is in its "
                "figures: measure from an idle machine"
            )
    return warnings
