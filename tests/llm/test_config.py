"""Sizes from a config.json: families, experts, quantisation, and what is refused with its reason."""

import json
from importlib.resources import files

import pytest

from torchsplit_core.llm.config import read_config, sizes_of_config
from torchsplit_core.llm.published import decoder_names, published_decoder, quantized
from torchsplit_core.values import InputFault

ROWS = json.loads(files("torchsplit_core.llm").joinpath("data/decoders.json").read_text(encoding="utf-8"))[
    "decoders"
]
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100,
    "num_attention_heads": 8, "num_key_value_heads": 2, "torch_dtype": "bfloat16", "max_position_embeddings": 512,
}  # fmt: skip


def sizes_with(**change):
    return read_config(json.dumps({**LLAMA, **change}), "here")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["name"]))
def test_the_sizes_recount_to_the_published_parameters(row):
    sizes = sizes_of_config(row["config"], row["name"])
    assert sizes.parameters / 1e9 == pytest.approx(row["parameters_billion"], rel=2.5e-3)
    assert row["source"].endswith("config.json") and row["name"] in decoder_names()


@pytest.mark.parametrize(("name", "row"), [
    ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", "llama-4-scout-17b-16e"),
    ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
    ("Qwen2.5-7B-Instruct", "qwen2.5-7b"),
    ("Qwen3-32B", "qwen3-32b"),
    ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
    ("codellama/CodeLlama-34b-Instruct-hf", "codellama-34b"),
    ("LLAMA-3.3-70B-INSTRUCT", "llama-3.1-70b"),
])  # fmt: skip
def test_a_repository_names_its_decoder(name, row):
    published = sizes_of_config(next(entry["config"] for entry in ROWS if entry["name"] == row), row)
    assert published_decoder(name).parameters == published.parameters


def test_a_name_says_how_weights_are_quantised():
    scout = published_decoder("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic")
    assert (scout.dtype, scout.attention_dtype) == ("fp8", "bf16")
    assert published_decoder("Meta-Llama-3.1-8B-Instruct-FP8").dtype == "fp8"
    assert published_decoder("Qwen2.5-7B-Instruct-AWQ").dtype == "int4"
    assert quantized(scout, "bf16").attention_dtype is None


def test_names_that_are_not_known_are_refused_with_the_nearest():
    with pytest.raises(InputFault, match=r"unknown decoder 'llama-3.1-9b'. Did you mean llama-3.1-8b"):
        published_decoder("llama-3.1-9b")


def test_widths_of_a_head_and_groups_of_keys():
    sizes = sizes_with()
    assert (sizes.head_dim, sizes.kv_heads, sizes.max_model_len) == (8, 2, 512)
    assert sizes.attention_parameters == 64 * 64 * 2 + 64 * 16 * 2
    assert sizes.kv_bytes_per_token == 2 * 2 * 2 * 8 * 2
    assert sizes_with(head_dim=16).attention_parameters == 2 * sizes.attention_parameters
    assert sizes_with(num_key_value_heads=None).kv_heads == 8


def test_biases_windows_and_tied_embeddings():
    tied = sizes_with(model_type="gemma")
    assert sizes_with().parameters - tied.parameters == 64 * 100
    assert sizes_with(tie_word_embeddings=True).tied_embeddings
    assert sizes_with(model_type="qwen2").attention_parameters - sizes_with().attention_parameters == 8 * 12
    assert sizes_with(model_type="qwen2", sliding_window=100).sliding_window is None
    assert sizes_with(model_type="mistral", sliding_window=100).sliding_window == 100
    gemma = sizes_with(model_type="gemma2", sliding_window=100)
    assert (gemma.sliding_window, gemma.windowed_layers) == (100, 1)


def test_families_without_gates_have_names_of_their_own():
    gpt2 = {
        "model_type": "gpt2",
        "n_layer": 12,
        "n_embd": 768,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
    sizes = read_config(json.dumps({**gpt2, "torch_dtype": "float32"}), "here")
    assert sizes.ffn_size == 3072 and not sizes.gated and sizes.position_embeddings == 1024
    assert sizes.parameters / 1e6 == pytest.approx(124.4, rel=2e-3)


def test_experts_shared_ones_and_layers_without():
    mixtral = sizes_with(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2)
    assert (mixtral.layers_with_experts, mixtral.ffn_size, mixtral.shared_expert_ffn_size) == (2, 0, 0)
    assert mixtral.active_parameters == 2 * (mixtral.attention_parameters + 2 * 3 * 64 * 128 + 64 * 8)
    qwen = sizes_with(
        model_type="qwen2_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
        shared_expert_intermediate_size=48, mlp_only_layers=[0],
    )  # fmt: skip
    assert (qwen.layers_with_experts, qwen.ffn_size, qwen.shared_expert_ffn_size) == (1, 128, 48)
    scout = {"model_type": "llama4_text", "num_local_experts": 4, "interleave_moe_layer_step": 2}
    text = {**LLAMA, **scout, "intermediate_size_mlp": 256}
    nested = {"model_type": "llama4", "text_config": text, "torch_dtype": "bfloat16"}
    sizes = read_config(json.dumps(nested), "here")
    assert (sizes.layers_with_experts, sizes.ffn_size, sizes.shared_expert_ffn_size) == (1, 256, 128)
    seeing = read_config(json.dumps({
        **nested, "vision_config": {"num_hidden_layers": 1, "hidden_size": 4, "intermediate_size": 8},
    }), "here")  # fmt: skip
    assert seeing.other_parameters == 4 * 16 + 2 * 32


@pytest.mark.parametrize(("settings", "dtype", "attention"), [
    ({"quant_method": "fp8"}, "fp8", None),
    ({"quant_method": "awq", "bits": 4}, "int4", None),
    ({"quant_method": "gptq", "bits": 8}, "int8", None),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", None),
    ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "fp8", None),
    ({"quant_method": "compressed-tensors", "format": "x", "config_groups": {"group_0": {"weights": {
        "num_bits": 8, "type": "int"}}}}, "int8", None),
    ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn"]}, "fp8", "bf16"),
])  # fmt: skip
def test_quantised_weights(settings, dtype, attention):
    sizes = sizes_with(quantization_config=settings)
    assert (sizes.dtype, sizes.attention_dtype) == (dtype, attention)


@pytest.mark.parametrize(("change", "said"), [
    ({"model_type": "bert"}, "'bert' is an encoder"),
    ({"model_type": "t5"}, "'t5' has an encoder beside its decoder"),
    ({"model_type": "deepseek_v3"}, r"'deepseek_v3' compresses its keys and values \(latent attention\)"),
    ({"kv_lora_rank": 512}, "latent attention"),
    ({"model_type": "mamba"}, "'mamba' is none of llama"),
    ({"model_type": None}, "model_type: is missing"),
    ({"num_hidden_layers": 0}, "num_hidden_layers: is 0, not a whole number"),
    ({"hidden_size": None}, "hidden_size: is missing"),
    ({"hidden_size": 65}, "num_attention_heads: 8 do not divide the hidden size 65"),
    ({"num_key_value_heads": 3}, "num_key_value_heads: 3 do not divide the 8 heads"),
    ({"torch_dtype": "int4"}, "torch_dtype: 'int4' is none of"),
    ({"quantization_config": {"quant_method": "magic"}}, "quant_method 'magic' is not known"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "weights of 3 bits"),
    ({"quantization_config": 3}, "quantization_config: is not a JSON object"),
    ({"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3}, "is 3, more than the 2 experts"),
])  # fmt: skip
def test_what_is_refused_says_why(change, said):
    with pytest.raises(InputFault, match=said):
        sizes_with(**change)


@pytest.mark.parametrize("text", ["", "[]", "{", "3", '{"model_type": "llama", "text_config": 4}'])
def test_what_is_no_config_is_refused(text):
    with pytest.raises(InputFault, match=r"^here"):
        read_config(text, "here")
