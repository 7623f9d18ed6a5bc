"""The fields of an LLM among the inputs: usual requests, lengths with one spread, limits that may be empty."""

import pytest

from app.components.field_rows import Edit
from app.plans.inputs.llms import apply_field, new_llm, values
from torchsplit_core.llm.published import published_decoder
from torchsplit_core.values import ConstantTokens, InputFault, LognormalTokens

LLM = new_llm(published_decoder("llama-3.1-8b"))


def edited(field, value, llm=LLM):
    return apply_field(llm, Edit("chat", field, value))


def test_a_new_llm_is_a_chat_and_another_use_brings_its_lengths_and_limits():
    assert values(LLM)["use"] == "Chat"
    code = edited("use", "Code")
    assert values(code)["use"] == "Code"
    assert code.prompt_tokens != LLM.prompt_tokens and code.max_ttft_ms != LLM.max_ttft_ms
    assert edited("use", "Own", code) == code


def test_an_edited_figure_makes_the_use_ones_own_and_the_spread_is_of_both_lengths():
    longer = edited("prompt_tokens", "2000")
    assert values(longer)["use"] == "Own"
    assert longer.prompt_tokens == LognormalTokens(2000.0, LLM.prompt_tokens.cv)
    alike = edited("length_cv", "0", longer)
    assert (alike.prompt_tokens, alike.output_tokens) == (
        ConstantTokens(2000),
        ConstantTokens(round(LLM.output_tokens.mean)),
    )


def test_limits_may_be_empty_and_what_an_engine_needs_may_not():
    assert edited("max_ttft_ms", "").max_ttft_ms is None
    assert edited("max_tpot_ms", "30").max_tpot_ms == 30.0
    assert edited("max_num_seqs", "64").engine.max_num_seqs == 64
    for field in ("percentile", "gpu_memory_utilization", "max_num_seqs"):
        with pytest.raises(InputFault):
            edited(field, "")
