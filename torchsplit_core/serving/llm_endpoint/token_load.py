"""Requests of given lengths sent to an endpoint that takes tokens, each when it is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import uvloop

from torchsplit_core.serving.llm_endpoint.address import LlmEndpoint
from torchsplit_core.serving.llm_endpoint.client import EndpointClient, StreamedAnswer
from torchsplit_core.serving.llm_endpoint.open_loop import LoadStage, run_stages

LEAST_VOCABULARY = 256
"""Tokens below this number are sent: every decoder served here has so many."""


@dataclass(frozen=True, slots=True)
class TokenLoad:
    """Requests in order of arrival: when each is due, in seconds from the start, and its tokens."""

    times_s: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]


def send_tokens(
    endpoint: LlmEndpoint,
    load: TokenLoad,
    seed: int = 0,
    on_progress: Callable[[float, int, int], object] = lambda at_s, sent, answered: None,
) -> tuple[StreamedAnswer, ...]:
    """The answers, each of exactly the tokens asked for. `on_progress` as in `run_stages`."""
    stage = LoadStage(0.0, load.times_s[-1], load.times_s)

    def make(index: int) -> tuple[bytes, int]:
        rng = np.random.default_rng([seed, index])
        tokens = rng.integers(1, LEAST_VOCABULARY, load.prompt_tokens[index])
        output = load.output_tokens[index]
        return endpoint.body(tokens.tolist(), output), output

    async def run() -> tuple[StreamedAnswer, ...]:
        client = EndpointClient(endpoint)
        try:
            (answers,) = await run_stages(client, [stage], make, on_progress)
        finally:
            client.close()
        return answers.answers

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())
