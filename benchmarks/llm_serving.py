"""An LLM engine on this processor under open-loop load, measured token by token, beside its simulation.

A small decoder of random weights is served by transformers' continuous batching behind an OpenAI-compatible endpoint
(`torchsplit_core/serving/llm_engine`) and loaded as `measure --endpoint` loads any. Cases are lengths by loads. Every
second one is predicted from the two beside it (rounds of all cases follow each other, since cores change their speed
within minutes): the line of step times (base, prompt token, sequence, context token,
attention) is fitted to their logs of steps, and the contract's rules with the engine's own limits do the rest from
arrivals and lengths alone. Beside it the same with the line of the case's own steps: what is left then is the scheduler
and the way over HTTP, and what it removes is that the cores changed their speed.

transformers' scheduler differs from the contract's where blocks are short (`llm_engine/batching.py`), which no case
reaches; the cache is large enough. It admits by the first chunk, so `reserve_full_prompt` is false. One more
difference stays: SDPA on a CPU reads the keys of all sequences for each, so that steps of many long contexts take
longer than any line of sums.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.serving.llm_endpoint.address import LlmEndpoint, parse_endpoint
from torchsplit_core.serving.llm_endpoint.client import EndpointClient, StreamedAnswer
from torchsplit_core.serving.llm_endpoint.open_loop import LoadStage, StageAnswers, run_stages
from torchsplit_core.serving.llm_endpoint.rows import stage_figures
from torchsplit_core.serving.llm_engine.process import LlmEngineProcess, llm_engine
from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings
from torchsplit_core.serving.llm_engine.step_fit import StepFit, fit_step_line
from torchsplit_core.serving.llm_engine.step_log import LoggedStep
from torchsplit_core.simulation.continuous import run_engines
from torchsplit_core.values import EngineServer, StepLine

VOCABULARY = 512
DECODER = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
}  # fmt: skip
"""About 4 million parameters: a step takes milliseconds, of which Python's are the larger part."""
SPREAD_CV = 0.6
"""Of prompt and output lengths."""
LENGTHS = {"short": (60, 40), "prompts": (300, 20), "answers": (40, 120), "both": (200, 80)}
"""Mean prompt and output tokens."""
LOADS = (0.3, 0.6, 0.85)
"""Shares of the rate that the engine completes when all requests are there."""
BURST = 24
"""Requests at once, from which that rate is reckoned first; later it is from the steps of the case before."""
LEAST_REQUESTS = 8
"""Of a case in a round."""


@dataclass(frozen=True)
class Requests:
    """Arrivals (s) and lengths of one case."""

    times_s: NDArray[np.float64]
    prompts: NDArray[np.int64]
    outputs: NDArray[np.int64]


@dataclass(frozen=True)
class Times:
    """ms: TTFT mean and 90th percentile, mean time per token, whole response mean and 90th percentile."""

    ttft: float
    ttft_p90: float
    tpot: float
    whole: float
    whole_p90: float


@dataclass(frozen=True)
class Case:
    """One case measured: the requests as they were sent, on the clock of all rounds, and the engine's steps."""

    name: str
    load: float
    rate_rps: float
    requests: Requests
    answers: tuple[StreamedAnswer, ...]
    steps: tuple[LoggedStep, ...]

    def joined(self, later: Case) -> Case:
        """The same case with what a later round measured of it."""
        ours, theirs = astuple(self.requests), astuple(later.requests)
        requests = Requests(*(np.concatenate(pair) for pair in zip(ours, theirs, strict=True)))
        return replace(
            self, requests=requests, answers=self.answers + later.answers, steps=self.steps + later.steps
        )

    @property
    def measured(self) -> Times:
        """Times at the client. Raises RuntimeError where a request failed."""
        stage = LoadStage(self.rate_rps, 0.0, ())
        figures = stage_figures(StageAnswers(stage, 0.0, self.answers))
        if figures is None or figures.problems or figures.tpot_ms is None:
            raise RuntimeError(f"requests failed: {figures and dict(figures.problems)}")
        ttft, whole = figures.ttft_ms, figures.e2e_ms
        return Times(ttft.mean, ttft.p90, figures.tpot_ms.mean, whole.mean, whole.p90)


def drawn_lengths(mean: float, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Log-normal lengths, rounded up."""
    sigma = np.sqrt(np.log1p(SPREAD_CV**2))
    return np.ceil(rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, count)).astype(np.int64)


def predicted(engine: EngineServer, requests: Requests) -> Times:
    """What the simulation says of these very requests."""
    run = run_engines(
        engine, requests.times_s, requests.prompts, requests.outputs, np.zeros_like(requests.prompts)
    )
    ttft = 1e3 * (run.first_token_s - requests.times_s)
    whole = 1e3 * (run.last_token_s - requests.times_s)
    longer = requests.outputs > 1
    tpot = 1e3 * (run.last_token_s - run.first_token_s)[longer] / (requests.outputs[longer] - 1)
    return Times(ttft.mean(), _p90(ttft), tpot.mean(), whole.mean(), _p90(whole))


def _p90(values: NDArray[np.float64]) -> float:
    return float(np.sort(values)[-(-9 * len(values) // 10) - 1])


def server_of(limits: Mapping[str, int], *lines: StepLine) -> EngineServer:
    """The engine as the simulation knows it."""
    return EngineServer(
        "engine", "decoder", "whole", limits["max_num_seqs"], limits["max_num_batched_tokens"], limits["kv_blocks"],
        lines, block_tokens=limits["block_tokens"], reserve_full_prompt=False, max_model_len=limits["max_model_len"],
    )  # fmt: skip


def send(endpoint: LlmEndpoint, requests: Requests, rate_rps: float) -> StageAnswers:
    """Send them as tokens, when they are due."""
    stage = LoadStage(rate_rps, float(requests.times_s[-1]), tuple(requests.times_s.tolist()))

    def make(index: int) -> tuple[bytes, int]:
        rng = np.random.default_rng([7, index])
        tokens = rng.integers(1, VOCABULARY, int(requests.prompts[index]))
        output = int(requests.outputs[index])
        return endpoint.body(tokens.tolist(), output), output

    async def run() -> StageAnswers:
        client = EndpointClient(endpoint)
        (answers,) = await run_stages(client, [stage], make)
        client.close()
        return answers

    return asyncio.run(run())


def measure_case(
    engine: LlmEngineProcess, name: str, load: float, rate_rps: float, count: int, seed: int
) -> Case:
    """One case: so many requests, Poisson arrivals."""
    rng = np.random.default_rng([11, seed])
    times_s = np.cumsum(rng.standard_exponential(count)) / rate_rps
    requests = drawn_requests(name, times_s, rng)
    engine.take_steps()
    answers = send(parse_endpoint(engine.url, "decoder"), requests, rate_rps).answers
    sent = replace(requests, times_s=np.array([answer.due_s for answer in answers]))
    return Case(name, load, rate_rps, sent, answers, tuple(engine.take_steps()))


def drawn_requests(name: str, times_s: NDArray[np.float64], rng: np.random.Generator) -> Requests:
    """Requests of a kind of lengths; every answer has two tokens at least."""
    prompt, output = (drawn_lengths(mean, len(times_s), rng) for mean in LENGTHS[name])
    return Requests(times_s, prompt, output + 1)


def saturating_rate(limits: Mapping[str, int], name: str, line: StepLine) -> float:
    """Requests/s that the simulation completes of these lengths when all are there at once."""
    requests = drawn_requests(name, np.zeros(200), np.random.default_rng(5))
    run = run_engines(
        server_of(limits, line),
        requests.times_s,
        requests.prompts,
        requests.outputs,
        np.zeros_like(requests.prompts),
    )
    return float(200 / run.last_token_s.max())


def measure(
    names: Sequence[str], loads: Sequence[float], seconds: float, rounds: int
) -> tuple[dict[str, int], list[Case]]:
    """The engine's limits, and all cases, each measured once a round; the engine is idle between them."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "config.json"
        source.write_text(json.dumps(DECODER))
        settings = LlmEngineSettings(
            str(source), "decoder", max_num_seqs=8, max_num_batched_tokens=256, kv_blocks=2048
        )
        with llm_engine(settings) as engine:
            limits = engine.engine()
            steps = measure_case(engine, names[0], 0.0, 1e3, BURST, 999).steps
            cases: dict[tuple[str, float], Case] = {}
            for turn, (name, load) in itertools.product(range(rounds), itertools.product(names, loads)):
                rate = load * saturating_rate(limits, name, fit_step_line(steps).line)
                count = max(LEAST_REQUESTS, int(rate * seconds))
                case = measure_case(engine, name, load, rate, count, 100 * turn + len(cases))
                print(f"round {turn}, {name} at {load:g}: {case.measured}", file=sys.stderr)
                steps, known = case.steps, cases.get((name, load))
                cases[name, load] = case if known is None else known.joined(case)
    return limits, list(cases.values())


def errors(times: Times, measured: Times) -> list[float]:
    """Relative errors, field by field."""
    return [said / truth - 1 for said, truth in zip(astuple(times), astuple(measured), strict=True)]


def print_lines(fits: Mapping[str, StepFit]) -> None:
    """The fitted lines as a table."""
    head = "base ms | a prompt token | a sequence | 1,000 context tokens | 1,000 pairs of attention"
    print(f"\n| steps of | steps | {head} | median error of a step |")
    print("|---" * 8 + "|")
    for name, fit in fits.items():
        line = fit.line
        print(
            f"| {name} | {fit.steps:,} | {line.base_ms:.3g} | {line.prompt_token_ms:.3g} | {line.sequence_ms:.3g} | "
            f"{1e3 * line.context_token_ms:.3g} | {1e3 * line.attention_ms:.3g} | {fit.median_error:.0%} |"
        )


@dataclass(frozen=True)
class Prediction:
    """A case predicted from its neighbours in time, and from its own steps, each with the way over HTTP."""

    case: Case
    fit: StepFit
    refit: StepFit
    from_neighbours: Times
    from_own_steps: Times
    way_ms: float


def predict(limits: Mapping[str, int], cases: Sequence[Case], number: int) -> Prediction:
    """Case `number` from the cases before and after it, of other lengths or loads, and of nearly the same minute.

    The way is from the end of the step that made a first token to the client, the median over the same two cases.
    """
    case, known = cases[number], [cases[at] for at in (number - 1, number + 1) if 0 <= at < len(cases)]
    way_ms = float(np.median([way for other in known for way in ways_ms(other)]))
    fit, refit = fit_step_line([step for other in known for step in other.steps]), fit_step_line(case.steps)
    from_neighbours, from_own_steps = (
        with_way(predicted(server_of(limits, each.line), case.requests), way_ms) for each in (fit, refit)
    )
    return Prediction(case, fit, refit, from_neighbours, from_own_steps, way_ms)


def ways_ms(case: Case) -> list[float]:
    """From the last end of a step to each first token at the client; all processes of a host share one clock."""
    ends_s = np.sort([step.end_s for step in case.steps])
    first_s = np.array([answer.token_times_s[0] for answer in case.answers])
    return [float(way) for way in 1e3 * (first_s - ends_s[np.searchsorted(ends_s, first_s) - 1])]


def with_way(times: Times, way_ms: float) -> Times:
    """The same with so many ms from the client to the engine and back."""
    return Times(
        times.ttft + way_ms,
        times.ttft_p90 + way_ms,
        times.tpot,
        times.whole + way_ms,
        times.whole_p90 + way_ms,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--loads", nargs="+", type=float, default=list(LOADS))
    parser.add_argument("--seconds", type=float, default=5.0, help="of each case in each round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    busy = [os.getloadavg()[0]]
    limits, cases = measure(options.lengths, options.loads, options.seconds, options.rounds)
    busy.append(os.getloadavg()[0])
    predictions = [predict(limits, cases, number) for number in range(1, len(cases), 2)]
    head = "TTFT, ms | p90 | ms a token | whole, ms | p90"
    print(f"| case | load | requests | {head} | predicted: {head} | own steps: {head} | way, ms |")
    print("|---" * 19 + "|")
    for each in predictions:
        case = each.case
        cells = [f"{value:,.4g}" for value in astuple(case.measured)]
        for times in (each.from_neighbours, each.from_own_steps):
            cells += [f"{error:+.0%}" for error in errors(times, case.measured)]
        print(
            f"| {case.name} | {case.load:g} | {len(case.requests.times_s)} | {' | '.join(cells)} | {each.way_ms:.1f} |"
        )
    for text, name in (("predicted", "from_neighbours"), ("with the case's own steps", "from_own_steps")):
        rows = np.abs([errors(getattr(each, name), each.case.measured) for each in predictions])
        medians = ", ".join(f"{median:.1%}" for median in np.median(rows, axis=0))
        print(f"\nMedian error, {text}: {medians} ({head.replace(' |', ',')}).")
    print_lines(
        {f"{each.case.name}, {each.case.load:g}: neighbours": each.fit for each in predictions}
        | {f"{each.case.name}, {each.case.load:g}: its own": each.refit for each in predictions}
    )
    cores = len(os.sched_getaffinity(0))
    print(
        f"\nLoad average of this machine at start and end: {busy[0]:.1f} and {busy[1]:.1f}, on {cores} cores."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
