"""The size command: the table, CSV and JSON, the request for a simulation, and faults."""

import csv
import io
import json
import re

import pytest

from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file
from torchsplit_core.simulation import simulate

FEW = ("--requests", "60", "--gpus", "L40S-48GB,A100-80GB@cost=2.5")
LIMITS = ("--rate", "8", "--max-ttft", "500", "--max-tpot", "50")
COLUMNS = (
    "gpu_type,profile,tensor_parallel,fits,weights_gib,kv_gib,kv_blocks,max_context,rate_rps,low_rps,high_rps,ttft_ms,"
    "tpot_ms,goodput,engines,gpus,cost,binds,basis"
)
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 24, "hidden_size": 2048, "intermediate_size": 5504,
    "num_attention_heads": 16, "vocab_size": 32000, "torch_dtype": "bfloat16", "max_position_embeddings": 4096,
}  # fmt: skip


def size(*words: str) -> int:
    return main(["size", *words])


def test_the_table_names_the_best_and_fits_a_terminal(capsys):
    assert size("llama-3.1-8b", *FEW, *LIMITS) == 0
    text = capsys.readouterr().out
    first, _, heads, *rest = text.splitlines()
    assert first.startswith("8 requests/s of llama-3.1-8b (1,024 tokens in, 256 out) take 2 × A100-80GB, ")
    assert heads.split() == [
        "engine",
        "on",
        "req/s",
        "90",
        "%",
        "TTFT",
        "TPOT",
        "eng",
        "GPUs",
        "cost/h",
        "binds",
    ]
    table = rest[: rest.index("")]
    assert len(table) > 5 and max(len(line) for line in (heads, *table)) <= 90
    assert "Too little memory: A100-80GB 1g.10gb." in text and "more fit: --csv lists all" in text


def test_csv_and_json_have_all_rows_and_the_same_figures(capsys, tmp_path):
    file = tmp_path / "sizes.csv"
    assert size("llama-3.1-8b", *FEW, *LIMITS, "--csv", "-o", str(file)) == 0
    text = capsys.readouterr().out
    assert file.read_text(encoding="utf-8") == text and text.startswith(COLUMNS)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 4 + 6 + 4
    assert size("llama-3.1-8b", *FEW, *LIMITS, "--json") == 0
    printed = capsys.readouterr()
    objects = json.loads(printed.out)
    assert "take 2 × A100-80GB" in printed.err
    for row, entry in zip(rows, objects, strict=True):
        assert row["gpu_type"] == entry["gpu_type"] and (row["profile"] or None) == entry["profile"]
        assert (row["fits"] == "yes") == entry["fits"] == (entry["engine"] is not None)
        for name in ("rate_rps", "low_rps", "high_rps", "ttft_ms", "tpot_ms", "goodput", "cost", "gpus"):
            assert (float(row[name]) if row[name] else None) == entry[name]
        if entry["gpus"] is not None:
            assert entry["cost"] == (2.5 * entry["gpus"] if entry["gpu_type"] == "A100-80GB" else None)


@pytest.mark.repeated
def test_the_saved_request_simulates_what_the_first_row_says(capsys, tmp_path):
    saved = tmp_path / "request.json"
    assert (
        size("llama-3.1-8b", *FEW, *LIMITS, "--length-cv", "0.5", "--json", "--save-request", str(saved)) == 0
    )
    first = json.loads(capsys.readouterr().out)[0]
    model = simulate(read_file(saved, expected="torchsplit.simulation_request")[1]).models[0]
    assert model.offered_rps == pytest.approx(first["rate_rps"], rel=1e-5)
    assert model.ttft_ms.p95 == pytest.approx(first["ttft_ms"], rel=1e-5)
    assert model.tpot_ms.p95 == pytest.approx(first["tpot_ms"], rel=1e-5)
    assert model.goodput == pytest.approx(first["goodput"], rel=1e-5)


def test_a_config_and_another_precision_are_sized(capsys, tmp_path):
    config = tmp_path / "small" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(CONFIG))
    words = ("--gpus", "L40S-48GB:whole", "--requests", "30", "--json")
    assert size(str(config), *words) == 0
    plain = json.loads(capsys.readouterr().out)
    assert size(str(config.parent), *words, "--precision", "fp8", "--kv-precision", "fp8") == 0
    light = json.loads(capsys.readouterr().out)
    assert {row["profile"] for row in plain} == {None} and plain[0]["engine"]["model"] == "small"
    weights = [
        next(row for row in rows if row["tensor_parallel"] == 1)["weights_gib"] for rows in (plain, light)
    ]
    blocks = [
        next(row for row in rows if row["tensor_parallel"] == 1)["kv_blocks"] for rows in (plain, light)
    ]
    assert weights[1] < 0.6 * weights[0] and blocks[1] > 1.9 * blocks[0]
    assert plain[0]["max_context"] == 4096


def test_nothing_that_serves_ends_with_3_and_says_what_is_nearest(capsys):
    assert size("llama-3.1-8b", *FEW, "--max-ttft", "2") == 3
    assert re.search(
        r"nothing serves them within a TTFT of 2 ms at p95\. Nearest: a TTFT of \d", capsys.readouterr().out
    )
    assert size("llama-3.1-405b", "--gpus", "L4-24GB") == 3
    assert "No engine fits. Nearest, 8 × L4-24GB: weights 94.5 GiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("llama-3.1-9b",), "unknown decoder 'llama-3.1-9b'. Did you mean"),
        (("llama-3.1-8b", "--gpus", "A100-80G"), "unknown GPU type 'A100-80G'. Did you mean"),
        (("llama-3.1-8b", "--gpus", "2xA100-80GB"), "--gpus: A100-80GB is given with a count"),
        (("llama-3.1-8b", "--gpus", "A100-80GB", "--gpus", "A100-80GB@cost=1"), "A100-80GB is given twice"),
        (("llama-3.1-8b", "--gpus", "CPU-8c"), "'CPU-8c' is a CPU"),
        (("llama-3.1-8b", "--gpus", ","), "names no GPU"),
        (("llama-3.1-8b", "--prompt", "0"), "--prompt: is 0, below the least value 1"),
        (("llama-3.1-8b", "--output", "0"), "--output: is 0, below the least value 1"),
        (("llama-2-7b", "--output", "4000"), "1024 + 4000 tokens are more than"),
        (("llama-3.1-8b", "--max-model-len", "512"), "1024 + 256 tokens are more than the 512 of --max-model-len"),
        (("llama-2-7b", "--max-model-len", "5000"), "--max-model-len: is 5000, more than the 4096 tokens"),
        (("llama-3.1-8b", "--cached", "1024"), "--cached: is 1024, above the greatest value 1023"),
        (("llama-3.1-8b", "--rate", "0"), "--rate: is 0.0, not above 0"),
        (("llama-3.1-8b", "--rate", "nan"), "--rate: is nan, not a finite number"),
        (("llama-3.1-8b", "--max-ttft", "-1"), "--max-ttft: is -1.0, not above 0"),
        (("llama-3.1-8b", "--percentile", "100"), "--percentile: is 100, not between 0 and 100"),
        (("llama-3.1-8b", "--gpu-memory-utilization", "1.5"), "--gpu-memory-utilization: is 1.5"),
        (("llama-3.1-8b", "--precision", "fp9"), "unknown choice 'fp9'"),
        (("llama-3.1-8b", "--precision", "fp8", "--gpus", "A100-80GB"), "A100-80GB has no sourced peak for fp8"),
        (("missing/config.json",), "missing/config.json: cannot be read: no such file"),
    ],
)  # fmt: skip
def test_bad_input_is_one_message(words, message, stderr_of):
    text = stderr_of("size", *words)
    assert message in text and text.startswith("torchsplit: ") and len(text.splitlines()) == 1


def test_encoders_and_latent_attention_are_refused(stderr_of, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**CONFIG, "model_type": "bert"}))
    assert "'bert' is an encoder" in stderr_of("size", config)
    config.write_text(json.dumps({**CONFIG, "model_type": "deepseek_v3", "kv_lora_rank": 512}))
    assert "latent attention" in stderr_of("size", config)
