"""`profile-llm` and `request --points`: engines on cores as points, and who they are of."""

import json

import pytest

from tests.support.serving.llm_plans import ENGINE, POINT, decoder_in
from torchsplit_core import files, workflow
from torchsplit_core.cli.command import main
from torchsplit_core.values import ConstantTokens, LlmPoint, LlmPoints, LognormalTokens

POINTS = LlmPoints(
    "decoder", "a processor, 4 cores", ConstantTokens(64), ConstantTokens(16),
    (POINT, LlmPoint("CPU", "2c", 12.0, 1, 50.0, 7.0, engine=ENGINE)), 200.0, 50.0,
)  # fmt: skip
LENGTHS = ("--prompt", "64", "--output", "16", "--max-ttft", "200", "--max-tpot", "50")


@pytest.fixture
def asked(monkeypatch):
    calls = []

    def profile_llm(settings, requests, core_counts, seconds, progress):
        calls.append((settings, requests, core_counts, seconds))
        return POINTS

    monkeypatch.setattr(workflow, "profile_llm", profile_llm)
    return calls


def test_options_are_those_of_the_engine_and_its_requests(asked, tmp_path, capsys):
    out = tmp_path / "points.json"
    words = (
        "--device", "cpu:1c,cpu:2c", *LENGTHS, "--length-cv", "0.5", "--percentile", "90", "--duration-s", "7",
        "--max-num-seqs", "8", "--max-num-batched-tokens", "99", "--kv-blocks", "77", "--max-model-len", "500",
        "--seed", "3", "-o", str(out),
    )  # fmt: skip
    assert main(["profile-llm", "decoder", *words]) == 0
    ((settings, requests, core_counts, seconds),) = asked
    assert (settings.source, settings.max_num_seqs, settings.max_num_batched_tokens) == ("decoder", 8, 99)
    assert (settings.kv_blocks, settings.max_model_len, settings.seed) == (77, 500, 3)
    assert (core_counts, seconds) == ([1, 2], 7.0)
    assert requests.prompt_tokens == LognormalTokens(64.0, 0.5) and requests.percentile == 90.0
    assert requests.limits == (200.0, 50.0) and requests.output_tokens == LognormalTokens(16.0, 0.5)
    assert files.read_file(out, expected="torchsplit.llm_points")[1] == POINTS
    said = capsys.readouterr().err
    assert "1c: 8 requests/s: p95 of TTFT 60 ms, p95 of TPOT 9 ms" in said and "2c: 12 requests/s" in said


@pytest.mark.parametrize(("words", "message"), [
    (("--device", "cpu"), "'cpu' is not a number of cores"), (("--device", "cuda"), "vLLM with measure --endpoint"),
    (("--device", "cpu:1c,cpu:1c"), "names 2 numbers of cores, 1 of them different"),
    (("--max-ttft", "0"), "--max-ttft: is 0"), (("--prompt", "1.5"), "--prompt: is 1.5, not a whole number"),
    (("--percentile", "100"), "--percentile: is 100"), (("--duration-s", "5000"), "--duration-s: is 5000"),
    (("--kv-blocks", "1"), "kv_blocks: is 1"), (("--length-cv", "-1"), "--length-cv: is -1"),
])  # fmt: skip
def test_wrong_options_are_named_before_anything_starts(words, message, asked, capsys):
    assert main(["profile-llm", "decoder", *words]) == 2
    assert message in capsys.readouterr().err and asked == []


def request(tmp_path, *words):
    out = tmp_path / "request.json"
    assert main(["request", *words, "--gpus", "1xCPU-4c", "-o", str(out)]) == 0
    return json.loads(out.read_text())["models"]


@pytest.fixture
def points(tmp_path):
    path = tmp_path / "points.json"
    files.write_file(POINTS, path)
    return str(path)


def test_points_are_of_the_only_llm_or_of_the_named_one_and_it_is_served_from_its_config(
    tmp_path, points, capsys
):
    config = decoder_in(tmp_path)
    (chat,) = request(tmp_path, "--llm", f"chat={config}", "--points", points, *LENGTHS)
    assert chat["source"] == config and [point["profile"] for point in chat["llm"]["points"]] == ["1c", "2c"]
    assert chat["llm"]["points"][0]["engine"]["step"][0]["base_ms"] == 2.0
    assert "note:" not in capsys.readouterr().err
    first, second = request(
        tmp_path, "--llm", f"chat={config},code={tmp_path}", "--points", f"code={points}", "--prompt", "100"
    )  # fmt: skip
    assert not first["llm"]["points"] and len(second["llm"]["points"]) == 2
    assert second["source"] == str(tmp_path) and first.get("source") is None
    said = capsys.readouterr().err
    assert "code was measured with other prompt tokens, output tokens, max ttft ms, max tpot ms; its" in said


@pytest.mark.parametrize(("words", "message"), [
    (("chta={points}",), "names no LLM of --llm. Did you mean chat?"), (("{points}",), "names no LLM of --llm"),
    (("chat=/nowhere.json",), "/nowhere.json"), (("chat={config}",), "format"),
])  # fmt: skip
def test_points_of_nobody_are_named(words, message, tmp_path, points, capsys):
    config = decoder_in(tmp_path)
    given = [word.format(points=points, config=config) for word in words]
    options = ("--llm", f"chat={config},code={config}", "--points", *given, "--gpus", "1xCPU-4c")
    assert main(["request", *options]) == 2
    assert message in capsys.readouterr().err


def test_points_without_an_llm_are_of_nobody(points, capsys):
    assert main(["request", "--points", points, "--gpus", "1xCPU-4c"]) == 2
    assert "names no LLM of --llm. Write NAME=FILE" in capsys.readouterr().err
