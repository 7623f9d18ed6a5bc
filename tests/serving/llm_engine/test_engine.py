"""The engine itself, with a tiny decoder: it follows the contract's rules, step by step, and answers over HTTP."""

import asyncio
import itertools
import json

import numpy as np
import pytest

from torchsplit_core.serving.llm_endpoint.address import parse_endpoint
from torchsplit_core.serving.llm_endpoint.measurement import EndpointLoad, measure_endpoint
from torchsplit_core.serving.llm_endpoint.open_loop import load_stage
from torchsplit_core.serving.llm_engine.batching import ContinuousBatch
from torchsplit_core.serving.llm_engine.decoder import context_length, load_decoder
from torchsplit_core.serving.llm_engine.process import llm_engine
from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings
from torchsplit_core.simulation.continuous import run_engines
from torchsplit_core.values import DeterministicArrivals, EngineServer, InputFault, StepLine

pytestmark = pytest.mark.torch

DECODER = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 300,
    "max_position_embeddings": 512,
}  # fmt: skip
PROMPTS = (70, 5, 33, 64, 16, 17, 1, 120, 40, 8)
OUTPUTS = (3, 20, 8, 1, 12, 30, 5, 4, 2, 9)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(DECODER))
    return str(path)


def run_at_once(settings):
    """Tokens of each request and the log, all requests there before the first step."""
    model, _ = load_decoder(settings)
    engine = ContinuousBatch(model, settings)

    async def run():
        ended = [asyncio.Event() for _ in PROMPTS]
        tokens = [[] for _ in PROMPTS]

        def on_tokens(number):
            def take(new, last, error):
                assert not error
                tokens[number].extend(new)
                if last:
                    ended[number].set()

            return take

        for number, (prompt, output) in enumerate(zip(PROMPTS, OUTPUTS, strict=True)):
            engine.submit(
                [(7 * number + place) % 300 for place in range(prompt)], output, True, on_tokens(number)
            )
        engine.start()
        for event in ended:
            await event.wait()
        return tokens

    try:
        return asyncio.run(run()), engine
    finally:
        engine.stop()


def test_steps_are_those_of_the_contracts_rules(source):
    settings = LlmEngineSettings(source, "tiny", max_num_seqs=4, max_num_batched_tokens=48, kv_blocks=64)
    tokens, engine = run_at_once(settings)
    assert tuple(map(len, tokens)) == OUTPUTS
    # Coefficients without a common measure: an equal end of every step is an equal step.
    line = StepLine(1.0, 0.0137, 0.131, 0.00171, 0.0000193)
    logged = engine.take_steps()
    ends_ms = np.cumsum([
        line.base_ms + line.prompt_token_ms * step.prompt_tokens + line.sequence_ms * step.sequences
        + line.context_token_ms * step.context_tokens + line.attention_ms * step.attention_pairs
        for step in logged
    ])  # fmt: skip
    server = EngineServer("e", "m", "whole", 4, 48, 64, (line,), reserve_full_prompt=False)
    counts = [np.array(values, dtype=np.int64) for values in (PROMPTS, OUTPUTS, (0,) * len(PROMPTS))]
    run = run_engines(server, np.zeros(len(PROMPTS)), *counts)
    assert run.engines[0].steps == len(logged) and run.engines[0].sequences == sum(
        step.running for step in logged
    )
    simulated = 1e3 * np.concatenate([run.first_token_s, run.last_token_s])
    assert max(np.min(np.abs(ends_ms - moment)) for moment in simulated) < 1e-6
    assert max(simulated) == pytest.approx(ends_ms[-1])


@pytest.mark.repeated
def test_it_is_measured_as_any_endpoint(source):
    settings = LlmEngineSettings(source, "tiny", max_num_seqs=4, max_num_batched_tokens=64, kv_blocks=64)
    with llm_engine(settings) as engine:
        load = EndpointLoad((load_stage(DeterministicArrivals(50.0), 50.0, 1.0, 5, 0),), 30, 6)
        result = measure_endpoint(parse_endpoint(engine.url, "tiny"), load, {}, "here")
        steps = engine.take_steps()
    figures = result.figures[0]
    # Words of five letters and their spaces: thirty bytes make five words less one space.
    assert (figures.answered, figures.prompt_tokens, figures.output_tokens) == (5, 29, 6)
    assert {(answer.prompt_tokens, len(answer.token_times_s)) for answer in result.stages[0].answers} == {
        (29, 6)
    }
    assert result.rows[0]["kv_blocks"] == "64" and result.rows[0]["max_model_len"] == "512"
    # Requests of the probe are in the log, too.
    assert sum(step.prompt_tokens for step in steps) >= 5 * 29
    for before, after in itertools.pairwise(steps):
        assert before.start_s < before.end_s <= after.start_s
    first = min(answer.token_times_s[0] for answer in result.stages[0].answers)
    assert min(step.end_s for step in steps) < first


@pytest.mark.parametrize(("change", "words"), [
    ({"model_type": "no-such"}, "is no config.json of a decoder"), ({"model_type": 3}, "is no config.json of a"),
    ({"model_type": "vit"}, "makes no decoder"), ({"vocab_size": 100}, "vocabulary of 100 has no room for bytes"),
])  # fmt: skip
def test_a_config_of_no_decoder_is_said(tmp_path, change, words):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(DECODER | change))
    with pytest.raises(InputFault, match=words):
        load_decoder(LlmEngineSettings(str(path), "tiny"))


@pytest.mark.parametrize(("content", "words"), [
    (b"null", "is no config.json of a decoder: it holds null"), (b"{}", "of a decoder: its model_type is missing"),
    (b'{"model_type": 3}', "its model_type is 3"), (b"x", "line 1, column 1: is not JSON: a value is missing"),
    (b"\xff", "is not text in UTF-8"), (b" " * (2**20 + 1), "has more than the 1048576 bytes of a config.json"),
])  # fmt: skip
def test_a_file_that_is_no_config_is_said_in_words(tmp_path, content, words):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputFault, match=words):
        load_decoder(LlmEngineSettings(str(path), "tiny"))


def test_a_name_too_long_is_the_users_fault():
    with pytest.raises(InputFault, match="n: cannot be read: file name too long"):
        load_decoder(LlmEngineSettings("n" * 300, "tiny"))


def test_a_folder_with_weights_and_tokens_is_served_as_it_is(tmp_path, source):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    drawn, _ = load_decoder(LlmEngineSettings(source, "tiny", seed=5))
    folder = tmp_path / "model"
    drawn.save_pretrained(folder, safe_serialization=True)
    tokenizer = Tokenizer(WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    model, tokens = load_decoder(LlmEngineSettings(str(folder), "tiny"))
    assert all((model.state_dict()[name] == value).all() for name, value in drawn.state_dict().items())
    assert tokens.encode("b a x") == [1, 0, 2] and tokens.writer().write(1) == "b"
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(InputFault, match=r"tokenizer\.json cannot be read"):
        load_decoder(LlmEngineSettings(str(folder), "tiny"))


def test_lengths_are_those_that_model_and_cache_hold(source):
    model, _ = load_decoder(LlmEngineSettings(source, "tiny"))
    lengths = [(None, 64, 512), (None, 8, 129), (100, 64, 100), (200, 8, 129)]
    for chosen, blocks, longest in lengths:
        settings = LlmEngineSettings(source, "tiny", kv_blocks=blocks, max_model_len=chosen)
        assert context_length(model, settings) == longest
    with pytest.raises(InputFault, match="max_model_len: is 600, more than the 512"):
        context_length(model, LlmEngineSettings(source, "tiny", max_model_len=600))
