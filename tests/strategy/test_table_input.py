"""Rows of tables: many spellings mean one thing, and a bad row says why it can't be predicted."""

from __future__ import annotations

import pytest

from torchsplit_core.strategy.table_input.errors import RowError
from torchsplit_core.strategy.table_input.frameworks import read_framework, year_of
from torchsplit_core.strategy.table_input.gpu_text import read_machine
from torchsplit_core.strategy.table_input.models import read_model
from torchsplit_core.strategy.table_input.parsed_row import (
    read_precision,
    read_recompute,
    read_row,
    read_shard,
)

ROW = {
    "model": "GPT-7.5B", "params_b": "7.5", "layers": "36", "hidden": "4096", "heads": "32", "kv_heads": "32",
    "ffn": "16384", "vocab": "51200", "seq_len": "2048", "gpu": "A100-80GB (Selene, 8xHDR)", "n_gpus": "128",
    "tp": "4", "pp": "1", "dp": "32", "cp": "", "sharding": "", "recompute": "full", "precision": "fp16",
    "global_batch": "512", "micro_batch": "16", "framework": "Megatron-LM", "date": "2021-04",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100-80GB (single node, 8)", "A100-80GB"),
        ("a100_80gb RoCE 1600Gb/s node", "A100-80GB"),
        ("A100 40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("H100-96GB HBM2e 500W", "H100-SXM5-80GB"),
        ("DGX-H100", "H100-SXM5-80GB"),
        ("H100 PCIe", "H100-PCIe-80GB"),
        ("H200 NVLink + 400Gb/s per GPU", "H200-141GB"),
        ("DGX B200", "B200-180GB"),
        ("GB200 NVL72", "GB200-186GB"),
        ("GB300 NVL72", "GB300-279GB"),
        ("B300 SXM6", "B300-270GB"),
        ("H20-96GB HGX", "H20-96GB"),
        ("RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX-PRO-6000-Blackwell-Max-Q-96GB"),
        ("RTX PRO 6000 Workstation", "RTX-PRO-6000-Blackwell-Workstation-96GB"),
        ("V100-32GB DGX-2", "V100-SXM2-32GB"),
        ("RTX 4090", "RTX4090-24GB"),
    ],
)
def test_gpus(text: str, name: str) -> None:
    assert read_machine(text)[0].name == name


def test_what_the_text_says_of_memory_power_and_network() -> None:
    device, _ = read_machine("H100-96GB HBM2e 500W")
    assert device.memory_bytes == 96 * 2**30
    assert device.power_share == pytest.approx(500 / 700)
    assert device.bytes_per_s == 2039e9
    assert read_machine("a100_80gb RoCE 1600Gb/s node")[1].between_bytes_per_s == 200e9
    assert read_machine("H200 NVLink + 400Gb/s per GPU")[1].between_bytes_per_s == 400e9
    assert read_machine("A100-80GB (Selene, 8xHDR)")[1].between_bytes_per_s == 200e9
    assert read_machine("8 x 80GB A100, 400Gbps")[0].memory_bytes == 80 * 2**30
    assert read_machine("8 x 80GB A100, 400Gbps")[1].between_bytes_per_s == 50e9
    assert read_machine("A100-80GB", "vtrain-multi")[1].between_bytes_per_s == 100e9
    # A datasheet's NVLink figure counts both directions.
    assert read_machine("A100-80GB")[1].inside_bytes_per_s == 300e9


@pytest.mark.parametrize(
    ("text", "shard"),
    [
        ("FULL_SHARD", "fsdp"), ("FSDP2", "fsdp"), ("ZeRO-3", "fsdp"), ("HYBRID_SHARD", "hsdp"), ("HSDP", "hsdp"),
        ("SHARD_GRAD_OP", "zero2"), ("ZeRO stage 2", "zero2"), ("ZeRO-1", "zero1"),
        ("distributed optimizer", "zero1"), ("DDP", "none"), ("NO_SHARD", "none"), ("", None),
    ],
)  # fmt: skip
def test_sharding(text: str, shard: str | None) -> None:
    assert read_shard(text) == shard


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ("none", None)), ("none", ("none", None)), ("full", ("full", None)), ("True", ("full", None)),
        ("selective", ("selective", None)), ("selective op", ("selective", None)),
        ("no recomputation", ("none", None)), ("activation checkpointing", ("full", None)),
        ("selective 1/3", ("selective", 1 / 3)), ("selective every 2nd layer", ("selective", 0.5)),
    ],
)  # fmt: skip
def test_recomputation(text: str, found: tuple[str, float | None]) -> None:
    assert read_recompute(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("amp_bf16", "bf16"), ("BF16", "bf16"), ("fp16 mixed", "fp16"), ("float8", "fp8"), ("amp_fp8", "fp8"),
        ("TF32", "tf32"),
    ],
)  # fmt: skip
def test_precision(text: str, found: str) -> None:
    assert read_precision(text, read_machine("H100")[0]) == found


def test_precisions_that_are_not_reckoned() -> None:
    with pytest.raises(RowError, match="quantised"):
        read_precision("bnb.nf4", read_machine("A100")[0])
    with pytest.raises(RowError, match="eight-bit"):
        read_precision("fp8", read_machine("A100")[0])
    with pytest.raises(RowError, match="unknown"):
        read_precision("posit", read_machine("A100")[0])


def test_frameworks_of_their_years() -> None:
    old = read_framework("Megatron-LM", "2021-04", "ampere", "fp16", "")
    new = read_framework("Megatron-Core", "2024-10", "hopper", "bf16", "")
    assert (old.attention, old.data_overlap, old.compiled) == ("unfused", False, False)
    assert (new.attention, new.data_overlap, new.compiled) == ("cudnn", True, True)
    assert read_framework("torchtitan +compile", "", "ampere", "bf16", "").compiled
    assert year_of("2020-2022") == 2021.5
    assert year_of("") == 2024.0


def test_a_row_read() -> None:
    row = read_row(ROW)
    assert (row.choices.data, row.choices.tensor, row.choices.micro_batch) == (32, 4, 16)
    assert row.choices.recompute == "full"
    assert not row.model.gated


def test_empty_sizes_come_from_a_well_known_name() -> None:
    empty = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"), "")
    model = read_model({"model": "llama3-8b", "params_b": "8.03", "seq_len": "8192", **empty})
    assert (model.layers, model.kv_heads, model.vocab, model.gated) == (32, 8, 128256, True)
    with pytest.raises(RowError, match="not known"):
        read_model({"model": "llama3-8b", "params_b": "3", "seq_len": "8192", **empty})


def test_experts_come_from_the_name_or_from_the_active_parameters() -> None:
    sizes = {
        "layers": "32",
        "hidden": "4096",
        "heads": "32",
        "kv_heads": "8",
        "ffn": "14336",
        "vocab": "32000",
    }
    row = {**sizes, "params_b": "46.7", "seq_len": "4096"}
    for named in ({"model": "Mixtral 8x7B"}, {"model": "X", "active_params_b": "12.9"}):
        model = read_model({**row, **named})
        assert (model.experts, model.experts_per_token, model.gated) == (8, 2, True)
        assert model.parameters == pytest.approx(46.7e9, rel=0.005)


def test_sequence_parallelism_by_framework() -> None:
    assert not read_row(ROW).choices.sequence_parallel
    assert read_row({**ROW, "recompute": "selective"}).choices.sequence_parallel
    assert read_row({**ROW, "framework": "NeMo", "date": "2025-01"}).choices.sequence_parallel
    assert not read_row(
        {**ROW, "framework": "NeMo", "tp": "1", "dp": "128", "micro_batch": "4"}
    ).choices.sequence_parallel


def test_torchtitans_micro_batch_with_a_pipeline_is_the_local_batch() -> None:
    row = {**ROW, "framework": "torchtitan", "pp": "4", "tp": "1", "dp": "32", "global_batch": "512"}
    assert read_row(row).choices.micro_batch == 4


def test_an_empty_micro_batch_is_the_largest_that_fits() -> None:
    assert read_row({**ROW, "micro_batch": ""}).choices.micro_batch == 16
    assert read_row({**ROW, "micro_batch": "", "seq_len": "16384", "recompute": ""}).choices.micro_batch < 16


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"layers": "", "model": "X"}, "layers empty"),
        ({"layers": "many"}, "no number"),
        ({"layers": "0"}, "above 0"),
        ({"layers": "1.5"}, "whole number"),
        ({"hidden": "-1"}, "above 0"),
        ({"heads": "33"}, "multiple"),
        ({"kv_heads": "5"}, "multiple"),
        ({"tp": "3"}, "do not divide"),
        ({"dp": "7"}, "GPUs"),
        ({"gpu": ""}, "gpu is empty"),
        ({"gpu": "MI300X"}, "no such GPU"),
        ({"seq_len": ""}, "seq_len is empty"),
        ({"global_batch": "", "micro_batch": ""}, "empty"),
        ({"global_batch": "33"}, "do not divide"),
        ({"micro_batch": "5"}, "do not divide"),
        ({"n_gpus": "inf"}, "above 0"),
        ({"pp": "64", "tp": "1", "dp": "2"}, "more than the 36 layers"),
        ({"task": "Single-GPU Inference"}, "no training"),
        ({"recompute": "perhaps"}, "unknown word"),
        ({"ep": "2"}, "experts"),
        ({"task": "lora"}, "part of the weights"),
    ],
)
def test_a_bad_row_says_why(changed: dict[str, str], reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        read_row({**ROW, **changed})
