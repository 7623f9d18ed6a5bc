"""Validation of the LLMs of a plan request."""

from __future__ import annotations

import math
from dataclasses import astuple

from torchsplit_core.hardware import MOST_CORES, gpu_type, plain_profiles, profile_cores
from torchsplit_core.values import (
    CPU,
    WHOLE_GPU,
    ConstantTokens,
    EnginePoint,
    InputFault,
    ListedTokens,
    LlmModel,
    LlmPoint,
    LognormalTokens,
    PlanModel,
    PlanRequest,
    TokenCounts,
    TraceArrivals,
    profile_words,
)
from torchsplit_core.values.errors import quoted, suggestion
from torchsplit_core.values.limits import check_number, check_whole
from torchsplit_core.values.plan.llm import GROUP_SIZES

MOST_SEQUENCES = 65_536
MOST_TOKENS = 10_000_000


def check_llm(where: str, model: PlanModel) -> None:
    """Raise InputFault for the first thing wrong with an LLM of a request."""
    llm = model.llm
    assert llm is not None
    if any(not isinstance(point, EnginePoint) for point in model.points):
        raise InputFault(
            where, "has both variants and llm", "Leave the variants out: its engines follow from llm."
        )
    for name in ("max_latency_ms", "max_response_ms", "arrivals"):
        if getattr(model, name) is not None:
            remedy = (
                "Give llm.arrivals." if name == "arrivals" else "Give llm.max_ttft_ms and llm.max_tpot_ms."
            )
            raise InputFault(f"{where}, {name}", "is given, and the model is an LLM", remedy)
    where = f"{where}, llm"
    for limit in ("max_ttft_ms", "max_tpot_ms"):
        if getattr(llm, limit) is not None:
            check_number(f"{where}.{limit}", getattr(llm, limit), positive=True)
    if not 0 < llm.percentile < 100:
        raise InputFault(
            f"{where}.percentile", f"is {llm.percentile:g}, not between 0 and 100", "Give for example 95."
        )
    _check_sizes(where, llm)
    _check_options(where, llm)
    _check_lengths(where, llm)
    if isinstance(llm.arrivals, TraceArrivals) and len(set(llm.arrivals.times_s)) < 2:
        raise InputFault(
            f"{where}.arrivals",
            "have one time alone, which is no rate",
            "Give times that differ, or leave the arrivals out: Poisson at demand_rps.",
        )
    for number, point in enumerate(llm.points):
        _check_point(f"{where}.points[{number}]", llm, point)
    keys = [(point.gpu_type, point.profile, point.tensor_parallel) for point in llm.points]
    for number, key in enumerate(keys):
        if key in keys[:number]:
            raise InputFault(
                f"{where}.points[{number}]",
                f"is of the same {key[0]} {profile_words(key[1])} with tensor_parallel {key[2]} as another",
                "Drop one of the two.",
            )


def check_llm_plans(request: PlanRequest) -> None:
    """Raise InputFault if a request with LLMs asks for what their plans do not have."""
    names = [model.name for model in request.models if model.llm is not None]
    if names and request.sharing != "exclusive":
        raise InputFault(
            "sharing",
            f"is {request.sharing}, and the LLM {names[0]} has its slices to itself",
            'Plan with "sharing": "exclusive".',
        )


def _check_sizes(where: str, llm: LlmModel) -> None:
    if llm.config is None:
        if not llm.points:
            raise InputFault(
                where, "has neither config nor points", "Give its config.json, or points that were measured."
            )
        return
    for name in ("prompt_tokens", "output_tokens"):
        if getattr(llm, name) is None:
            raise InputFault(
                f"{where}.{name}", "is missing", 'Give for example {"kind": "constant", "value": 512}.'
            )


def _check_lengths(where: str, llm: LlmModel) -> None:
    """Tokens are 1 or more (of the cached ones 0), and the longest request that is not drawn fits into the context."""
    for name in ("prompt_tokens", "output_tokens", "cached_prompt_tokens"):
        tokens = getattr(llm, name)
        if tokens is not None:
            _check_tokens(f"{where}.{name}", tokens, least=0 if name == "cached_prompt_tokens" else 1)
    if llm.config is None or llm.prompt_tokens is None or llm.output_tokens is None:
        return
    contexts = {"llm.config": llm.config.max_model_len, "llm.engine": llm.engine.max_model_len}
    needed = _longest_request(llm.prompt_tokens, llm.output_tokens)
    for source, most in contexts.items():
        if most is not None and needed > most:
            raise InputFault(
                where,
                f"has requests of {needed:,} tokens, and {source}.max_model_len is {most:,}",
                "Shorten the prompt_tokens or output_tokens, or name an LLM with a longer context.",
            )


def _check_tokens(where: str, tokens: TokenCounts, *, least: int) -> None:
    if isinstance(tokens, LognormalTokens):
        check_number(f"{where}.mean", tokens.mean, positive=True)
        check_number(f"{where}.cv", tokens.cv, positive=True)
    elif isinstance(tokens, ConstantTokens):
        check_whole(f"{where}.value", tokens.value, least=least, most=MOST_TOKENS)
    else:
        for number, value in enumerate(tokens.values):
            check_whole(f"{where}.values[{number}]", value, least=least, most=MOST_TOKENS)


def _longest_request(prompt: TokenCounts, output: TokenCounts) -> int:
    """Most tokens of a request whose lengths are given; drawn ones count as 1, since longer ones are cut.

    Request i has the i-th entry of each list, modulo its length.
    """
    prompts, outputs = (
        tokens.values if isinstance(tokens, ListedTokens) else (getattr(tokens, "value", 1),)
        for tokens in (prompt, output)
    )
    common = math.gcd(len(prompts), len(outputs))
    # Entries meet whose indices are equal modulo the common divisor of the lengths.
    return max(max(prompts[part::common]) + max(outputs[part::common]) for part in range(common))


def _check_options(where: str, llm: LlmModel) -> None:
    options = llm.engine
    check_whole(f"{where}.engine.max_num_seqs", options.max_num_seqs, least=1, most=MOST_SEQUENCES)
    check_whole(
        f"{where}.engine.max_num_batched_tokens", options.max_num_batched_tokens, least=1, most=MOST_TOKENS
    )
    if options.max_model_len is not None:
        check_whole(f"{where}.engine.max_model_len", options.max_model_len, least=1, most=MOST_TOKENS)
    if not 0 < options.gpu_memory_utilization <= 1:
        raise InputFault(
            f"{where}.engine.gpu_memory_utilization",
            f"is {options.gpu_memory_utilization:g}, not a share above 0 and up to 1",
            "Give for example 0.9.",
        )
    if not llm.tensor_parallel:
        raise InputFault(f"{where}.tensor_parallel", "is empty", "Give for example [1, 2, 4, 8].")
    for size in llm.tensor_parallel:
        _check_group_size(f"{where}.tensor_parallel", size)


def _check_group_size(where: str, size: int) -> None:
    if size not in GROUP_SIZES:
        known = ", ".join(map(str, GROUP_SIZES[:-1]))
        raise InputFault(
            where, f"has {size}, and engines take {known} or {GROUP_SIZES[-1]} GPUs", "Give those."
        )


def _check_place(where: str, point: LlmPoint) -> None:
    """Whether some fleet can have the slice of a point."""
    if point.gpu_type == CPU:
        if profile_cores(point.profile) is None:
            raise InputFault(
                where,
                f"{quoted(profile_words(point.profile))} is not a number of cores, 1c to {MOST_CORES}c",
                "Measure it with profile-llm --device cpu:4c.",
            )
        return
    try:
        gpu = gpu_type(point.gpu_type)
    except InputFault as fault:
        raise fault.within(where) from None
    if gpu.divided == "cores":
        raise InputFault(
            where,
            f"has the gpu_type {quoted(point.gpu_type)}, which is a host",
            f"Write {CPU} for points of cores.",
        )
    known = [profile.name for profile in plain_profiles(gpu)]
    if point.profile != WHOLE_GPU and point.profile not in known:
        remedy = suggestion(point.profile, known, "profiles") if known else "Write null: it has no MIG."
        raise InputFault(where, f"unknown profile {point.profile!r} of {gpu.name}", remedy)


def _check_point_engine(where: str, point: LlmPoint) -> None:
    engine = point.engine
    if engine is None:
        return
    if engine.tensor_parallel != point.tensor_parallel or engine.group is not None:
        raise InputFault(
            where,
            f"is of {engine.tensor_parallel} GPUs in the group {quoted(engine.group)}, and the point of "
            f"{point.tensor_parallel} in none",
            "Give both the same tensor_parallel, and the engine the group null.",
        )
    check_whole(f"{where}.max_num_seqs", engine.max_num_seqs, least=1, most=MOST_SEQUENCES)
    check_whole(f"{where}.max_num_batched_tokens", engine.max_num_batched_tokens, least=1, most=MOST_TOKENS)
    if engine.step is None:
        return
    for name in ("kv_blocks", "max_model_len"):
        if getattr(engine, name) is None:
            raise InputFault(
                f"{where}.{name}", "is missing, and its steps are given", "Give both, or step null."
            )
    if not any(max(astuple(line)) > 0 for line in engine.step):
        raise InputFault(f"{where}.step", "takes no time", "Give the steps that were measured, or null.")


def _check_point(where: str, llm: LlmModel, point: LlmPoint) -> None:
    _check_place(where, point)
    _check_group_size(f"{where}.tensor_parallel", point.tensor_parallel)
    _check_point_engine(f"{where}.engine", point)
    if point.profile != WHOLE_GPU and point.tensor_parallel > 1:
        raise InputFault(
            where,
            f"has {point.tensor_parallel} GPUs and the slice {point.profile}, and groups are of GPUs without MIG",
            "Write null for the profile, or 1 for tensor_parallel.",
        )
    check_number(f"{where}.throughput_rps", point.throughput_rps)
    for name, limit in (("ttft_ms", llm.max_ttft_ms), ("tpot_ms", llm.max_tpot_ms)):
        figure = getattr(point, name)
        if figure is not None:
            check_number(f"{where}.{name}", figure)
        elif limit is not None:
            raise InputFault(
                f"{where}.{name}",
                f"is missing, and max_{name} is {limit:g}, so whether the point keeps it is not known",
                f"Give the {name} that was measured, or drop the point or the limit.",
            )
