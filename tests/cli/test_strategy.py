"""strategy from outside: a request in, its outcome out, exit codes, one message for bad input."""

import json
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file

REQUEST = ROOT / "examples" / "strategy_request.json"


def changed(tmp_path: Path, **parts: object) -> str:
    data = json.loads(REQUEST.read_text())
    for name, value in parts.items():
        data[name] = {**data[name], **value} if isinstance(value, dict) else value
    path = tmp_path / "request.json"
    path.write_text(json.dumps(data))
    return str(path)


def test_the_example_gives_its_outcome(tmp_path, capsys):
    out = tmp_path / "strategy.json"
    assert main(["strategy", str(REQUEST), "-o", str(out), "--json"]) == 0
    found = read_file(out, expected="torchsplit.strategy")[1]
    kept = read_file(ROOT / "examples" / "strategy.json")[1]
    assert found.candidates == kept.candidates and found.refused == kept.refused
    assert found.considered == kept.considered and found.message == kept.message
    said = capsys.readouterr()
    assert json.loads(said.out)["format"] == "torchsplit.strategy"
    assert "choices considered" in said.err and found.message in said.err


def test_a_model_that_fits_nowhere_ends_with_3(tmp_path, stderr_of):
    fleet = [{"nodes": 1, "gpus_per_node": 1, "type": "T4-16GB"}]
    path = changed(
        tmp_path, fleet=fleet, training={"precision": "fp16"}, fix={"tensor": 1}, may_need=["precision"]
    )
    assert "smallest fleet" in stderr_of("strategy", path, "-o", tmp_path / "out.json", code=3)
    found = read_file(tmp_path / "out.json")[1]
    assert found.status == "infeasible" and found.candidates == ()


@pytest.mark.parametrize(("parts", "words"), [
    ({"model": {"heads": 31}}, "model.heads"),
    ({"fix": {"tensor": 5}}, "fix.tensor"),
    ({"fix": {"micro_batch": 7}}, "fix.micro_batch"),
    ({"fix": {"warp": 2}}, "fix.warp"),
    ({"fix": {"shard": "zero9"}}, "fix.shard"),
    ({"fix": {"pipeline": 1, "interleave": 3}}, "contradict"),
    ({"training": {"precision": "fp8"}}, "training.precision"),
    ({"training": {"global_batch": 0}}, "training.global_batch"),
    ({"fleet": [{"nodes": 1, "gpus_per_node": 8, "type": "A1000"}]}, "Did you mean"),
    ({"fleet": []}, "fleet"),
    ({"model": {"kind": "source"}}, "model"),
])  # fmt: skip
def test_a_request_that_makes_no_sense_ends_with_2(parts, words, tmp_path, stderr_of):
    said = stderr_of("strategy", changed(tmp_path, **parts), "-o", tmp_path / "out.json")
    assert words in said and "Traceback" not in said
    assert not (tmp_path / "out.json").exists()


@pytest.mark.torch
def test_a_traced_model_is_planned_from_its_graph(tmp_path, stderr_of):
    source = {"kind": "source", "source": "sample:bert"}
    path = tmp_path / "source.json"
    path.write_text(json.dumps(json.loads(REQUEST.read_text()) | {"model": source, "fix": {}}))
    assert main(["strategy", str(path), "-o", str(tmp_path / "out.json")]) == 0
    found = read_file(tmp_path / "out.json")[1]
    assert found.candidates and found.statistics["blocks"] == 2
    path.write_text(json.dumps(json.loads(REQUEST.read_text()) | {"model": source, "fix": {"tensor": 2}}))
    assert "fix.tensor" in stderr_of("strategy", path)


def test_a_candidate_is_written_as_a_file(tmp_path, stderr_of):
    file = tmp_path / "train.py"
    path = changed(tmp_path, fix={"tensor": 2, "context": 1, "offload": "none", "shard": "fsdp"})
    assert (
        main(["strategy", path, "-o", str(tmp_path / "out.json"), "--export", str(file), "--candidate", "2"])
        == 0
    )
    compile(file.read_text(), str(file), "exec")
    assert "parallelize_module" in file.read_text()
    assert "--candidate" in stderr_of("strategy", path, "--export", file, "--candidate", "99")


def test_what_is_found_runs_and_a_refusal_leaves_the_outcome(tmp_path, capsys):
    file, out = tmp_path / "step.py", tmp_path / "out.json"
    assert main(["strategy", str(REQUEST), "-o", str(out), "--export", str(file)]) == 0
    compile(file.read_text(), str(file), "exec")
    outcome = read_file(out)[1]
    assert all(entry.not_exportable is None for entry in outcome.candidates)
    (not_run,) = [entry for entry in outcome.refused if entry.reason == "does not run yet"]
    assert not_run.nearest is not None and not_run.nearest.endswith(" s/step")
    refused, other = tmp_path / "refused.py", tmp_path / "other.json"
    # Copies on unlike nodes, which a run trains and no file does, are the fastest.
    sizes = {"layers": 12, "hidden": 1024, "heads": 16, "kv_heads": 16, "ffn": 4096, "sequence": 1024}
    fleet = [
        {"nodes": 1, "gpus_per_node": count, "type": kind}
        for kind, count in (("A100-40GB", 2), ("A10-24GB", 2))
    ]
    path = changed(tmp_path, model=sizes, fleet=fleet, fix={"tensor": 1, "micro_batch": None})
    assert main(["strategy", path, "-o", str(other), "--export", str(refused), "--candidate", "1"]) == 2
    assert "candidate.stages: is 2, for which no file is written" in capsys.readouterr().err
    assert len(read_file(other)[1].candidates[0].stages) == 2 and not refused.exists()
    # Without a number the best that a file is written for.
    assert main(["strategy", path, "-o", str(other), "--export", str(refused)]) == 0
    compile(refused.read_text(), str(refused), "exec")


def test_what_does_not_run_is_found_where_the_request_may_need_it(tmp_path, stderr_of):
    out = tmp_path / "out.json"
    said = stderr_of("strategy", changed(tmp_path, training={"precision": "fp16"}), "-o", out)
    assert (
        "training.precision: is 'fp16', which neither a training run nor an exported file carries out yet"
        in said
    )
    assert 'add "precision" to may_need' in said and not out.exists()
    path = changed(tmp_path, training={"precision": "fp16"}, may_need=["precision"])
    assert main(["strategy", path, "-o", str(out)]) == 0
    outcome = read_file(out)[1]
    assert all("fp16" in (entry.not_exportable or "") for entry in outcome.candidates)
    assert "may_need" in stderr_of("strategy", changed(tmp_path, may_need=["warp"]), "-o", out)
