"""The LLMs of a served plan under load: requests of their lengths, and what is predicted of these very requests."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torchsplit_core.latency_slo.simulation_input import server_id
from torchsplit_core.planning.outcome.instances import planned_instances
from torchsplit_core.serving.llm_endpoint.address import LlmEndpoint
from torchsplit_core.serving.llm_endpoint.client import StreamedAnswer
from torchsplit_core.serving.llm_endpoint.token_load import TokenLoad, send_tokens
from torchsplit_core.serving.llm_engine.step_log import LoggedStep
from torchsplit_core.serving.load_test.session import ServerHandle
from torchsplit_core.serving.pinning import off_cores
from torchsplit_core.serving.plan import ServingPlan
from torchsplit_core.simulation.continuous.request_tokens import request_tokens
from torchsplit_core.values import (
    EngineServer,
    InputFault,
    LlmModel,
    PlannedModel,
    PlanOutcome,
    PlanRequest,
    PoissonArrivals,
    Progress,
    SimulatedModel,
)

STEPS_PATH = "/torchsplit/steps"
HOP_REQUESTS = 10
"""Single requests to each LLM at the start, which measure the idle way through the front."""
HOP_TOKENS = (8, 2)
"""Prompt and output of each."""
LEAST_GAP_S = 0.1


@dataclass(frozen=True, slots=True)
class LlmTraffic:
    """An LLM of a plan and the requests that it gets. Each of its engines may have no step: points alone are known."""

    name: str
    llm: LlmModel
    planned: PlannedModel
    engines: tuple[EngineServer, ...]
    load: TokenLoad

    @property
    def simulated(self) -> bool:
        """Whether the steps of every engine are known."""
        return all(engine.step for engine in self.engines)


def llm_traffic(
    outcome: PlanOutcome,
    request: PlanRequest,
    serving_plan: ServingPlan,
    times_s: Mapping[str, Sequence[float]],
    seed: int,
) -> tuple[LlmTraffic, ...]:
    """The LLMs that have engines, with requests at these times. Raises InputFault for one whose lengths are unknown."""
    engines: dict[str, list[EngineServer]] = {}
    settings = {served.server: served.settings for served in serving_plan.engines}
    for instance in planned_instances(outcome.gpus, request):
        if (planned := instance.tenant.engine) is not None:
            id = server_id(instance.gpu, instance.slice, instance.tenant)
            server = EngineServer(
                id, instance.tenant.model, "whole", planned.max_num_seqs, planned.max_num_batched_tokens,
                settings[id].kv_blocks, planned.step or (), block_tokens=planned.block_tokens,
                reserve_full_prompt=planned.reserve_full_prompt, max_model_len=planned.max_model_len,
            )  # fmt: skip
            engines.setdefault(instance.tenant.model, []).append(server)
    planned_models = {model.name: model for model in outcome.models}
    traffic = []
    for number, model in enumerate(request.models):
        if model.llm is None or not times_s.get(model.name):
            continue
        for name in ("prompt_tokens", "output_tokens"):
            if getattr(model.llm, name) is None:
                remedy = 'Give for example {"kind": "constant", "value": 512}.'
                raise InputFault(f"models: {model.name}: llm.{name}", "is missing", remedy)
        lengths = SimulatedModel(
            model.name, ("whole",), PoissonArrivals(1.0),
            prompt_tokens=model.llm.prompt_tokens, output_tokens=model.llm.output_tokens,
        )  # fmt: skip
        servers, due = tuple(engines[model.name]), times_s[model.name]
        tokens = request_tokens(lengths, servers, len(due), (seed, number, 1))
        load = TokenLoad(tuple(due), tuple(tokens.prompts.tolist()), tuple(tokens.outputs.tolist()))
        traffic.append(LlmTraffic(model.name, model.llm, planned_models[model.name], servers, load))
    return tuple(traffic)


def cache_warnings(traffic: Sequence[LlmTraffic]) -> Iterator[str]:
    """Warnings of prompts that were planned as cached in part: engines on cores share no prefixes."""
    for item in traffic:
        if item.llm.cached_prompt_tokens is not None:
            yield (
                f"{item.name}: its engines here have no prefix cache, so that whole prompts were processed, of which "
                "the plan takes a part as cached"
            )


def measure_llm_hop(server: ServerHandle, traffic: LlmTraffic, slice_cores: Iterable[int]) -> float:
    """Median ms of an idle request to its first token beside the steps of its engine. Raises InputFault."""
    single = TokenLoad((0.0,), HOP_TOKENS[:1], HOP_TOKENS[1:])
    (first,) = _send(server, traffic.name, single, slice_cores)
    if first.problem:
        remedy = "Serve the plan by itself to see why (torchsplit serve)."
        raise InputFault(traffic.name, f"gives no answer to a request: {first.problem}", remedy)
    gap_s = max(LEAST_GAP_S, 2 * (first.token_times_s[-1] - first.due_s))
    times = tuple(gap_s * number for number in range(1, HOP_REQUESTS + 1))
    load = TokenLoad(times, HOP_TOKENS[:1] * HOP_REQUESTS, HOP_TOKENS[1:] * HOP_REQUESTS)
    fetch_steps(server)
    answers = [answer for answer in _send(server, traffic.name, load, slice_cores) if not answer.problem]
    steps = [step for log in fetch_steps(server).values() for step in log]
    beside = [
        1e3 * (answer.token_times_s[0] - answer.due_s - _busy_s(steps, answer.due_s, answer.token_times_s[0]))
        for answer in answers
    ]
    return max(0.0, statistics.median(beside)) if beside else 0.0


def _busy_s(steps: Sequence[LoggedStep], since_s: float, until_s: float) -> float:
    """Seconds of the steps that lie within this time."""
    return sum(
        step.end_s - step.start_s for step in steps if since_s <= step.start_s and step.end_s <= until_s
    )


def fetch_steps(server: ServerHandle) -> dict[str, list[LoggedStep]]:
    """The steps of each engine since they were last taken, by its id in the plan's simulation. Raises InputFault."""
    content = server.fetch_json("GET", STEPS_PATH)
    return {engine: [LoggedStep(**step) for step in steps] for engine, steps in content.items()}


@contextmanager
def llm_load(
    server: ServerHandle, traffic: Sequence[LlmTraffic], slice_cores: Iterable[int], progress: Progress | None
) -> Iterator[dict[str, Future[tuple[StreamedAnswer, ...]]]]:
    """Send every LLM its requests, each from a thread; the answers by model once all have come."""
    with ThreadPoolExecutor(max(1, len(traffic))) as threads:
        yield {
            item.name: threads.submit(_send, server, item.name, item.load, slice_cores, progress)
            for item in traffic
        }


def _send(
    server: ServerHandle,
    model: str,
    load: TokenLoad,
    slice_cores: Iterable[int],
    progress: Progress | None = None,
) -> tuple[StreamedAnswer, ...]:
    endpoint = LlmEndpoint("http", server.host, server.port, "/v1", model, fixed=True, key=server.token)

    def report(at_s: float, sent: int, answered: int) -> None:
        if progress is not None:
            share = min(1.0, at_s / max(load.times_s[-1], 1e-9))
            progress(share, f"{model}: {answered} of {len(load.times_s)} requests answered")

    # Of this thread alone.
    with off_cores(slice_cores):
        return send_tokens(endpoint, load, on_progress=report)


def without_llms(outcome: PlanOutcome, request: PlanRequest) -> tuple[PlanOutcome, PlanRequest]:
    """The batch models of a plan and its request alone."""
    gpus = tuple(
        replace(
            gpu,
            slices=tuple(
                item
                for item in gpu.slices
                if not any(tenant.engine is not None for tenant in item.tenants)
            ),
        )
        for gpu in outcome.gpus
    )  # fmt: skip
    models = tuple(model for model in request.models if model.llm is None)
    names = {model.name for model in models}
    planned = tuple(model for model in outcome.models if model.name in names)
    return replace(outcome, gpus=gpus, models=planned), replace(request, models=models)
