"""Memory of an engine beside what engines reported, and lines of a step beside a count by hand."""

from dataclasses import replace

import pytest

from torchsplit_core.llm.constants import EngineConstants
from torchsplit_core.llm.device import engine_device
from torchsplit_core.llm.memory import engine_memory, weight_bytes
from torchsplit_core.llm.published import published_decoder
from torchsplit_core.llm.step_times import chosen_experts, step_estimate, step_lines
from torchsplit_core.values import InputFault
from torchsplit_core.values.llm.decoder import DecoderSizes

SMALL = DecoderSizes(
    layers=10, hidden_size=1000, ffn_size=4000, heads=10, kv_heads=2, head_dim=100, vocab_size=50_000,
    max_model_len=4096,
)  # fmt: skip
PLAIN = EngineConstants(
    weight_bandwidth=1, kv_bandwidth=1, matrix_compute=1, attention_compute=1, expert_compute=1, few_tokens=0,
    step_ms=0, layer_ms=0, expert_layer_ms=0, sequence_ms=0, nvlink_reduce_ms=0, pcie_reduce_ms=0, nvlink_share=1,
    pcie_share=1,
)  # fmt: skip
"""Every peak is reached, and nothing begins late."""
H100 = "H100-SXM5-80GB"


@pytest.mark.parametrize(("name", "gpu", "parallel", "seqs", "blocks"), [
    # vLLM 0.15.1 and 0.19.0, gpu_memory_utilization 0.9: inference-sim (Apache-2.0), LLMServingSim (MIT).
    ("meta-llama/Llama-2-7b-hf", H100, 1, 128, 7463),
    ("Qwen/Qwen2.5-7B-Instruct", H100, 1, 128, 65368),
    ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", H100, 2, 128, 8253),
    ("Llama-3.1-8B", "RTX4090-24GB", 1, 256, 2588),
])  # fmt: skip
def test_blocks_are_near_those_that_engines_reported(name, gpu, parallel, seqs, blocks):
    memory = engine_memory(
        published_decoder(name), engine_device(gpu, tensor_parallel=parallel), max_num_seqs=seqs
    )
    assert memory.kv_blocks == pytest.approx(blocks, rel=0.04)
    parts = memory.weights_gib + memory.activations_gib + memory.engine_gib + memory.kv_gib
    assert parts == pytest.approx(memory.total_gib) and memory.fits


def test_what_does_not_fit_has_no_blocks():
    memory = engine_memory(published_decoder("llama-3.1-70b"), engine_device(H100))
    assert memory.kv_gib < 0 and memory.kv_blocks == 0 and not memory.fits
    assert engine_memory(published_decoder("llama-3.1-70b"), engine_device(H100, tensor_parallel=4)).fits


def test_weights_are_shared_by_the_group():
    whole = weight_bytes(SMALL, 1)
    assert whole == pytest.approx(2 * (SMALL.parameters - 1000))
    assert weight_bytes(SMALL, 2) == whole / 2
    assert weight_bytes(replace(SMALL, dtype="fp8"), 1) < 0.71 * whole


def test_a_slice_has_its_share():
    whole, part = engine_device(H100), engine_device(H100, profile="3g.40gb")
    assert part.memory_gb_per_s == whole.memory_gb_per_s / 2
    assert part.tflops["bf16"] == pytest.approx(whole.tflops["bf16"] * 60 / 132)
    memory = engine_memory(published_decoder("llama-3.1-8b"), part)
    assert memory.fits and memory.total_gib < 0.9 * 40


def test_lines_of_a_step_by_hand():
    device = engine_device(H100)
    memory, compute = step_lines(SMALL, device, constants=PLAIN)
    attention = 1000 * 1000 * 2 + 1000 * 200 * 2
    matrices = 10 * (attention + 3 * 1000 * 4000)
    bandwidth, flops = 3350e6, 989.4e9
    head = 50_000 * 1000
    assert memory.base_ms == pytest.approx((matrices + head) * 2 / bandwidth, rel=1e-5)
    assert memory.context_token_ms == pytest.approx(2 * 10 * 200 * 2 / bandwidth, rel=1e-5)
    assert memory.attention_ms == pytest.approx(4 * 10 * 1000 / flops, rel=1e-5)
    assert compute.base_ms == pytest.approx(head * 2 / bandwidth, rel=1e-5)
    assert compute.prompt_token_ms == pytest.approx(2 * matrices / flops, rel=1e-5)
    assert compute.sequence_ms == pytest.approx(2 * (matrices + head) / flops, rel=1e-5)
    assert (memory.prompt_token_ms, memory.context_token_ms) == (0, compute.context_token_ms)


def test_a_group_reads_less_and_speaks():
    constants = replace(PLAIN, nvlink_reduce_ms=0.01)
    memory, _ = step_lines(SMALL, engine_device(H100, tensor_parallel=2), constants=constants)
    alone, _ = step_lines(SMALL, engine_device(H100), constants=PLAIN)
    assert memory.base_ms == pytest.approx(alone.base_ms / 2 + 20 * 0.01, rel=1e-4)
    # 2 (n - 1) / n of 2000 bytes, twice a layer, over 450 GB/s in one direction.
    assert memory.prompt_token_ms == pytest.approx(20 * 2000 / 450e6, rel=1e-4)
    slow, _ = step_lines(SMALL, engine_device("L4-24GB", tensor_parallel=2), constants=PLAIN)
    assert slow.prompt_token_ms == pytest.approx(20 * 2000 / 32e6, rel=1e-4)


def test_weights_of_eight_bits_are_read_and_multiplied_faster():
    memory, compute = step_lines(replace(SMALL, dtype="fp8"), engine_device(H100), constants=PLAIN)
    plain, slow = step_lines(SMALL, engine_device(H100), constants=PLAIN)
    head = 2 * 50_000 * 1000 / 3350e6
    assert memory.base_ms - head == pytest.approx((plain.base_ms - head) / 2, rel=1e-4)
    assert compute.prompt_token_ms == pytest.approx(slow.prompt_token_ms / 2, rel=1e-3)
    with pytest.raises(InputFault, match="A100-80GB has no sourced peak for fp8"):
        step_lines(replace(SMALL, dtype="fp8"), engine_device("A100-80GB"))


def test_experts_are_chosen_more_than_once():
    sizes = replace(SMALL, experts=8, experts_per_token=2, expert_ffn_size=1000, ffn_size=0)
    even = replace(PLAIN, uneven_experts=1e-4)
    for tokens in (1, 4, 40):
        expected = 8 * (1 - (1 - 1 / 4) ** tokens)
        assert chosen_experts(sizes, tokens, even)[0] == pytest.approx(expected, rel=0.15)
        assert chosen_experts(sizes, tokens, replace(PLAIN, uneven_experts=1.0))[0] < expected
    few, _ = step_lines(sizes, engine_device(H100), sequences=1, constants=PLAIN)
    many, _ = step_lines(sizes, engine_device(H100), sequences=100, constants=PLAIN)
    read = [line.base_ms + line.sequence_ms * count for line, count in ((few, 1), (many, 100))]
    assert 2 < read[1] / read[0] < 5
    assert chosen_experts(SMALL, 5, PLAIN) == (0.0, 0.0)


def test_an_interval_holds_the_lines_and_a_known_row_moves_them():
    estimate = step_estimate(SMALL, engine_device(H100), spread=0.1)
    assert estimate.low[0].base_ms < estimate.step[0].base_ms < estimate.high[0].base_ms
    assert estimate.high[0].base_ms / estimate.low[0].base_ms == pytest.approx(1.3895, rel=1e-3)
    slower = step_estimate(SMALL, engine_device(H100), factor=1.1)
    assert slower.step[1].prompt_token_ms == pytest.approx(1.1 * estimate.step[1].prompt_token_ms, rel=1e-4)


@pytest.mark.parametrize(("make", "said"), [
    (lambda: engine_device("H100"), "unknown GPU type 'H100'"),
    (lambda: engine_device(H100, profile="9g.99gb"), "unknown profile '9g.99gb' of H100"),
    (lambda: engine_device(H100, profile="3g.40gb", tensor_parallel=2), "slices of 3g.40gb share no layer"),
    (lambda: engine_device("CPU-8c"), "is a CPU"),
    (lambda: step_lines(SMALL, engine_device(H100, tensor_parallel=4)), "4 GPUs can not share 10 heads evenly"),
    (lambda: step_lines(replace(SMALL, heads=12, kv_heads=4), engine_device(H100, tensor_parallel=3)),
     "can not share 4 key-value heads"),
])  # fmt: skip
def test_what_can_not_be_served_says_why(make, said):
    with pytest.raises(InputFault, match=said):
        make()
