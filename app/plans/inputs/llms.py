"""LLMs among the models of a scenario: the fields of their requests and limits, and a row to add one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from app.components.field_rows import Column, Edit, Row, field_rows
from app.plans.inputs.draft_editor import DraftEditor
from app.plans.inputs.fields import number, whole_number
from torchsplit_core.llm.published import decoder_names, published_decoder
from torchsplit_core.sizing.use_cases import USE_CASES
from torchsplit_core.values import (
    ConstantTokens,
    LlmModel,
    LognormalTokens,
    PlanModel,
    PlanRequest,
    TokenCounts,
)
from torchsplit_core.values.llm.decoder import DecoderSizes
from torchsplit_core.values.names import free_name

OWN = "Own"
"""The choice of use for figures that are none of the usual ones."""
SPREAD = 0.6
"""Standard deviation over mean of both lengths of a usual use; chosen."""
COLUMNS = (
    Column(
        "use", "requests like", "choice", quarters=4, options=[(name, name) for name in (*USE_CASES, OWN)],
        help="Usual lengths and limits to begin with.",
    ),
    Column("prompt_tokens", "prompt, tokens", quarters=2, help="Mean length of a prompt."),
    Column("output_tokens", "answer, tokens", quarters=2, help="Mean length of an answer."),
    Column(
        "length_cv", "spread of lengths", quarters=2,
        help="Standard deviation over mean of both lengths, log-normal. 0: all alike.",
    ),
    Column("percentile", "of requests, %", quarters=2, help="Percentage of requests that keep each limit."),
    Column(
        "max_ttft_ms", "first token ≤, ms", quarters=2, empty="none",
        help="Limit of the time to the first token, waiting included. The plan's engines are simulated.",
    ),
    Column(
        "max_tpot_ms", "per token ≤, ms", quarters=2, empty="none",
        help="Limit of the time for each further token.",
    ),
    Column("max_num_seqs", "sequences", quarters=2, help="Most sequences of a step (max_num_seqs)."),
    Column(
        "gpu_memory_utilization", "of memory", quarters=2,
        help="Share of the memory that an engine takes (gpu_memory_utilization).",
    ),
)  # fmt: skip
LABELS = {column.id: column.label for column in COLUMNS}


def values(llm: LlmModel) -> dict[str, Any]:
    """The values of an LLM's fields; those of its lengths only where they are constant or log-normal."""
    shown: dict[str, Any] = {
        "percentile": llm.percentile,
        "max_ttft_ms": llm.max_ttft_ms,
        "max_tpot_ms": llm.max_tpot_ms,
        "max_num_seqs": llm.engine.max_num_seqs,
        "gpu_memory_utilization": llm.engine.gpu_memory_utilization,
    }
    lengths = [_mean_and_cv(tokens) for tokens in (llm.prompt_tokens, llm.output_tokens)]
    if None not in lengths:
        (prompt, cv), (output, _) = (pair for pair in lengths if pair is not None)
        use = next((name for name in USE_CASES if with_use(llm, name) == llm), OWN)
        shown |= {"use": use, "prompt_tokens": prompt, "output_tokens": output, "length_cv": cv}
    return shown


def apply_field(llm: LlmModel, field_edit: Edit) -> LlmModel:
    """The LLM with one field edited."""
    name, label = field_edit.field, LABELS[field_edit.field]
    if name == "use":
        return llm if field_edit.value == OWN else with_use(llm, str(field_edit.value))
    if name in ("prompt_tokens", "output_tokens", "length_cv"):
        return _with_length(llm, name, number(field_edit.value, label, empty=0.0) or 0.0)
    if name == "max_num_seqs":
        return replace(llm, engine=replace(llm.engine, max_num_seqs=whole_number(field_edit.value, label)))
    value: Any = number(field_edit.value, label, needed=name in ("percentile", "gpu_memory_utilization"))
    if name == "gpu_memory_utilization":
        return replace(llm, engine=replace(llm.engine, gpu_memory_utilization=value))
    return replace(llm, **{name: value})


def with_use(llm: LlmModel, use: str) -> LlmModel:
    """The LLM with the usual lengths and limits of a use."""
    usual = USE_CASES[use]
    return replace(
        llm,
        prompt_tokens=_tokens(float(usual.prompt), SPREAD),
        output_tokens=_tokens(float(usual.output), SPREAD),
        max_ttft_ms=usual.max_ttft_ms,
        max_tpot_ms=usual.max_tpot_ms,
    )


def new_llm(sizes: DecoderSizes) -> LlmModel:
    """A decoder with the usual requests of a chat."""
    return with_use(LlmModel(sizes), "Chat")


def add(editor: DraftEditor) -> None:
    """A row that adds a published LLM."""
    options = [(name, name) for name in decoder_names()]
    column = Column("llm", "Add an LLM", "choice", quarters=4, empty="Add an LLM …", options=options)
    names = [model.name for model in editor.current.models]
    blank = Row(f"new LLM {len(names)}", "published LLMs", {"llm": ""}, state="blank")

    def added(request: PlanRequest, field_edit: Edit) -> PlanRequest:
        decoder = str(field_edit.value["llm"])
        name = free_name(decoder, [model.name for model in request.models])
        return replace(
            request, models=(*request.models, PlanModel(name, llm=new_llm(published_decoder(decoder))))
        )

    apply = partial(editor.apply_edits, "more LLMs", change=added)
    field_rows("Add an LLM", (column,), [blank], key=editor.key("more LLMs"), stacked=True, on_edits=apply)


def _mean_and_cv(tokens: TokenCounts | None) -> tuple[float, float] | None:
    if isinstance(tokens, ConstantTokens):
        return float(tokens.value), 0.0
    return (tokens.mean, tokens.cv) if isinstance(tokens, LognormalTokens) else None


def _tokens(mean: float, cv: float) -> TokenCounts:
    return LognormalTokens(mean, cv) if cv else ConstantTokens(round(mean))


def _with_length(llm: LlmModel, name: str, value: float) -> LlmModel:
    prompt, output = (_mean_and_cv(tokens) or (1.0, 0.0) for tokens in (llm.prompt_tokens, llm.output_tokens))
    if name == "length_cv":
        return replace(llm, prompt_tokens=_tokens(prompt[0], value), output_tokens=_tokens(output[0], value))
    if name == "prompt_tokens":
        return replace(llm, prompt_tokens=_tokens(value, prompt[1]))
    return replace(llm, output_tokens=_tokens(value, output[1]))
