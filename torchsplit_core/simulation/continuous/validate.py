"""Checks engines and lengths of a simulation request: whether every request can be held and ever ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from torchsplit_core.simulation.arrivals import request_count
from torchsplit_core.simulation.continuous.request_tokens import Lengths, longest_request
from torchsplit_core.values import (
    ConstantTokens,
    EngineServer,
    InputFault,
    ListedTokens,
    LognormalTokens,
    SimulatedModel,
    SimulationRequest,
    StepLine,
    TokenCounts,
)
from torchsplit_core.values.limits import LARGEST_MAGNITUDE, LARGEST_WHOLE, check_number, check_whole

MOST_CHUNKS = 50_000_000
"""Steps that the prompts of a model take one after the other, in one replication: some minutes of computing."""

TOKEN_FIELDS = ("prompt_tokens", "output_tokens", "cached_prompt_tokens")
ENGINE_FIELDS = (*TOKEN_FIELDS, "max_ttft_ms", "max_tpot_ms")


def validate_engines(request: SimulationRequest) -> None:
    """Raises InputFault for the first rule that an engine, or a model with engines, breaks."""
    for engine in request.engines:
        _check_engine(engine)
    for model in request.models:
        engines = [engine for engine in request.engines if engine.model == model.name]
        if engines:
            _check_model(request, model, engines)
            continue
        for name in ENGINE_FIELDS:
            if getattr(model, name) is not None:
                raise InputFault(
                    f"models.{model.name}.{name}",
                    f"is given, and no engine serves {model.name}",
                    'Leave it out, or give a server of the model "kind": "continuous".',
                )


def _check_engine(engine: EngineServer) -> None:
    where = f"servers.{engine.id}"
    for name in ("count", "max_num_seqs", "max_num_batched_tokens", "kv_blocks", "block_tokens"):
        check_whole(f"{where}.{name}", getattr(engine, name), least=1)
    if engine.max_model_len is not None:
        check_whole(f"{where}.max_model_len", engine.max_model_len, least=1)
    if not engine.step:
        raise InputFault(f"{where}.step", "is empty", "Give the line that a step's time follows.")
    for number, line in enumerate(engine.step):
        for field in fields(StepLine):
            _check_coefficient(f"{where}.step[{number}].{field.name}", getattr(line, field.name))
    if not any(getattr(line, field.name) for line in engine.step for field in fields(StepLine)):
        raise InputFault(f"{where}.step", "takes 0 ms whatever is in a step", "Give a line its base_ms.")


def _check_coefficient(where: str, value: object) -> None:
    """Like `check_number`, but as small as doubles are: a pair of tokens takes next to nothing."""
    if isinstance(value, float) and 0 < value < LARGEST_MAGNITUDE:
        return
    check_number(where, value)


def _check_model(request: SimulationRequest, model: SimulatedModel, engines: Sequence[EngineServer]) -> None:
    where = f"models.{model.name}"
    first = engines[0]
    if len(model.stages) != 1:
        raise InputFault(
            f"{where}.stages",
            f"has {len(model.stages)} stages, and {first.id} is an engine, which runs a whole model",
            "Give the model one stage, or servers with batch_ms.",
        )
    batching = next((server for server in request.batch_servers if server.model == model.name), None)
    if batching is not None:
        raise InputFault(
            f"servers.{batching.id}",
            f"takes batches of {model.name}, and {first.id} is an engine of it",
            "Make all servers of the model engines, or none.",
        )
    for name in TOKEN_FIELDS:
        tokens = getattr(model, name)
        if tokens is not None:
            _check_tokens(f"{where}.{name}", tokens, least=0 if name == "cached_prompt_tokens" else 1)
        elif name != "cached_prompt_tokens":
            raise InputFault(
                f"{where}.{name}",
                f"is missing, and {first.id} is an engine, whose steps are of tokens",
                'Give them, for example {"kind": "constant", "value": 300}.',
            )
    for name in ("max_ttft_ms", "max_tpot_ms"):
        limit = getattr(model, name)
        if limit is not None:
            check_number(f"{where}.{name}", limit, positive=True)
    _check_lengths(model, engines, request_count(model.arrivals, request.requests_per_model))


def _check_tokens(where: str, tokens: TokenCounts, *, least: int) -> None:
    if isinstance(tokens, ConstantTokens):
        check_whole(f"{where}.value", tokens.value, least=least)
    elif isinstance(tokens, LognormalTokens):
        check_number(f"{where}.mean", tokens.mean, positive=True)
        check_number(f"{where}.cv", tokens.cv, positive=True)
    else:
        if not tokens.values:
            raise InputFault(f"{where}.values", "is empty", "Give the tokens of a request.")
        for number, value in enumerate(tokens.values):
            check_whole(f"{where}.values[{number}]", value, least=least)


def _check_lengths(model: SimulatedModel, engines: Sequence[EngineServer], requests: int) -> None:
    """Raises InputFault for a request that an engine cannot hold, or for prompts of too many steps."""
    assert model.prompt_tokens is not None
    assert model.output_tokens is not None
    longest = longest_request(engines)
    drawn = [
        name
        for name in ("prompt_tokens", "output_tokens")
        if isinstance(getattr(model, name), LognormalTokens)
    ]
    if drawn and longest < 2:
        least = min(engines, key=lambda engine: engine.longest_request)
        raise InputFault(
            f"servers.{least.id}.{'kv_blocks' if least.max_model_len is None else 'max_model_len'}",
            f"leaves room for {longest} token, and the shortest request has 2: one of its prompt and one of its answer",
            "Give it more.",
        )
    prompts, outputs = _shortest_lengths(model, requests)
    for engine in engines:
        limit = engine.cache_tokens + 1
        if drawn or engine.max_model_len is not None:
            limit = engine.longest_request
        over = np.flatnonzero(prompts + outputs > limit)
        if len(over):
            request = int(over[0])
            raise _too_long(model, engine, request, int(prompts[request]), int(outputs[request]))
    # Of drawn lengths the longest that an engine takes.
    most = requests * float(longest if drawn else int(prompts.max()) + int(outputs.max()))
    if most > LARGEST_WHOLE:
        raise InputFault(
            f"models.{model.name}",
            f"makes up to {most:.3g} tokens in a replication, more than {LARGEST_WHOLE:.3g}",
            "Simulate fewer requests, or shorter ones.",
        )
    budget = min(engine.max_num_batched_tokens for engine in engines)
    mean = float(prompts.mean())
    if isinstance(model.prompt_tokens, LognormalTokens):
        mean = min(model.prompt_tokens.mean, longest)
    chunks = requests * mean / budget
    if chunks > MOST_CHUNKS:
        raise InputFault(
            f"models.{model.name}.prompt_tokens",
            f"takes {chunks:.3g} steps of {budget} tokens for {requests} requests, more than {MOST_CHUNKS}",
            "Simulate fewer requests, or raise max_num_batched_tokens.",
        )


def _shortest_lengths(model: SimulatedModel, requests: int) -> tuple[Lengths, Lengths]:
    """Prompt and output tokens of each request; 1 where they are drawn, since longer ones are cut.

    Lists repeat, so each combination is there once.
    """
    lists = [
        tokens.values if isinstance(tokens, ListedTokens) else (getattr(tokens, "value", 1),)
        for tokens in (model.prompt_tokens, model.output_tokens)
    ]
    count = min(requests, math.lcm(*map(len, lists)))
    prompts, outputs = (np.resize(np.array(values, dtype=np.int64), count) for values in lists)
    return prompts, outputs


def _too_long(
    model: SimulatedModel, engine: EngineServer, request: int, prompt: int, output: int
) -> InputFault:
    lengths = [
        f"{'at least ' * isinstance(tokens, LognormalTokens)}{count} {kind} token{'s' * (count != 1)}"
        for tokens, count, kind in (
            (model.prompt_tokens, prompt, "prompt"),
            (model.output_tokens, output, "output"),
        )
    ]
    blocks = -(-(prompt + output - 1) // engine.block_tokens)
    problem = f"request {request} (the first is 0) has {' and '.join(lengths)}"
    if blocks > engine.kv_blocks:
        problem += f", which take {blocks} KV blocks, and {engine.id} has {engine.kv_blocks}"
    else:
        problem += f", and {engine.id} takes at most {engine.longest_request} in all"
    return InputFault(f"models.{model.name}", problem, "Shorten it, or give the engine a longer context.")
