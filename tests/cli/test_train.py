"""The command train: what it refuses before it starts anything, one clear message each."""

import dataclasses
import json

import pytest

from tests.support.paths import ROOT
from tests.support.seeds import repeated
from torchsplit_core import workflow
from torchsplit_core.cli import main
from torchsplit_core.files import read_file, write_file

STRATEGY = str(ROOT / "examples" / "training" / "two_ranks.json")


@pytest.mark.parametrize(("given", "message"), [
    (["sample:nope", "--strategy", STRATEGY], "unknown sample 'nope'"),
    (["sample:bert", "--strategy", str(ROOT / "examples" / "plan.json")], "is a PlanOutcome, neither a strategy nor"),
    (["sample:bert", "--strategy", str(ROOT / "examples" / "strategy.json"), "--candidate", "99"], "is 99, but"),
    (["sample:bert", "--strategy", STRATEGY, "--processes", "0"], "--processes"),
    (["sample:bert", "--strategy", STRATEGY, "--processes", "9"], "at most 8"),
    (["sample:bert", "--strategy", STRATEGY, "--shares", "1,2,3"], "has 3 numbers for 2 data-parallel ranks"),
    (["sample:bert", "--strategy", STRATEGY, "--shares", "3:1"], "numbers with commas between"),
    (["sample:bert", "--strategy", STRATEGY, "--steps", "0"], "--steps"),
    (["sample:bert", "--strategy", STRATEGY, "--keep", "0"], "--keep"),
    (["sample:bert", "--strategy", STRATEGY, "--clip-norm", "-1"], "--clip-norm: is -1, not a positive"),
    (["sample:bert", "--strategy", STRATEGY, "--warmup-steps", "3"], "is 3, but there is no schedule"),
    ([f"{__file__}:client", "--strategy", STRATEGY], "it is not trusted"),
])  # fmt: skip
def test_what_cannot_be_trained_is_one_message(given, message, tmp_path, stderr_of):
    stderr = stderr_of("train", *given, "-o", tmp_path / "run")
    assert message in stderr and stderr.startswith("torchsplit: ") and stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_more_processes_than_take_turns_on_the_cores_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})
    assert (
        main(
            ["train", "sample:bert", "--strategy", STRATEGY, "--processes", "5", "-o", str(tmp_path / "run")]
        )
        == 2
    )
    assert "--processes: is 5, above the 4 that this machine takes (4 a core)" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_and_one_that_has_a_run(tmp_path, stderr_of):
    (tmp_path / "file").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    for folder, message in (
        (tmp_path / "file" / "run", "is a file. Check the path"),
        (tmp_path / "run", "--resume"),
    ):
        assert message in stderr_of("train", "sample:bert", "--strategy", STRATEGY, "-o", folder)


def free_request(tmp_path, **fleet):
    """A request for the plain decoder of two layers on one core, one choice fixed."""
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 128, "vocab": 100, "sequence": 16}
    nodes = {"nodes": 1, "gpus_per_node": 2, "type": "CPU-1c"} | fleet
    request = {
        "format": "torchsplit.strategy_request", "version": 1, "model": {"kind": "transformer", **sizes},
        "fleet": [nodes], "training": {"global_batch": 8, "precision": "fp32"}, "fix": {"pipeline": 1},
    }  # fmt: skip
    path = tmp_path / "free.json"
    path.write_text(json.dumps(request))
    return path


@pytest.mark.torch
@pytest.mark.repeated
def test_choices_that_a_request_leaves_free_are_searched_first_and_said(tmp_path, capsys):
    request, run = free_request(tmp_path), tmp_path / "run"
    outcome = workflow.strategy(read_file(request)[1], runners=("train",))
    command = ["train", "sample:llama", "--strategy", str(request), "--steps", "1", "-o", str(run)]
    assert main(command) == 0
    facts = json.loads((run / "run.json").read_text())
    assert facts["choices"] == dataclasses.asdict(outcome.candidates[0].choices) and facts["processes"] == 2
    assert f"{request}: trains by {outcome.message}" in capsys.readouterr().err


def test_the_files_of_a_fleet_have_what_was_found(tmp_path, capsys):
    folder = tmp_path / "files"
    command = [
        "train",
        "sample:llama",
        "--strategy",
        str(free_request(tmp_path, nodes=64)),
        "--candidate",
        "2",
    ]
    assert main([*command, "--write-fleet", "slurm", "-o", str(folder)]) == 0
    written = read_file(folder / "strategy.json")[1]
    second = workflow.strategy(read_file(tmp_path / "free.json")[1], runners=("train",)).candidates[1]
    assert written.fix.given() == dataclasses.asdict(second.choices)
    assert "trains by candidate 2 of: data" in capsys.readouterr().err


def test_a_fleet_that_is_larger_than_this_machine_is_refused_with_what_to_do(
    tmp_path, stderr_of, monkeypatch
):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    request = free_request(tmp_path, nodes=8)
    said = stderr_of("train", "sample:llama", "--strategy", request, "-o", tmp_path / "run")
    assert (
        "the strategy's fleet: has 16 devices, above the 8 processes that the 2 cores of this machine take"
        in said
    )
    assert "--processes" in said and "--write-fleet" in said and not (tmp_path / "run").exists()


def test_what_a_run_cannot_carry_out_is_not_searched_for_it(tmp_path, stderr_of):
    request = free_request(tmp_path, gpus_per_node=4)
    request.write_text(request.read_text().replace('"pipeline": 1', '"pipeline": 1, "offload": "optimizer"'))
    said = stderr_of(
        "train", "sample:llama", "--strategy", request, "--processes", "4", "-o", tmp_path / "run"
    )
    assert "which no training run carries out yet" in said


@pytest.mark.torch
@repeated(
    ("source", "example", "more"),
    [
        ("sample:moe", "two_expert_ranks", {}),
        ("sample:llama", "two_sequence_parts", {}),
        ("sample:moe", "two_sequence_parts", {"expert": 2, "shard": "fsdp"}),
    ],
    kept=0,
)
def test_samples_with_divided_sequences_or_experts_have_the_losses_of_one_process(
    source, example, more, tmp_path
):
    request = read_file(ROOT / "examples" / "training" / f"{example}.json")[1]
    divided = dataclasses.replace(request.fix, **more)
    alone = dataclasses.replace(divided, data=1, context=1, expert=1, shard="none")
    losses = []
    for fix, processes in ((alone, "1"), (divided, "2")):
        strategy, run = tmp_path / f"{processes}.json", tmp_path / processes
        write_file(dataclasses.replace(request, fix=fix), strategy)
        given = ["--strategy", str(strategy), "--steps", "4", "--in-order", "-o", str(run)]
        assert main(["train", source, *given]) == 0
        facts = json.loads((run / "run.json").read_text())
        assert str(facts["processes"]) == processes
        lines = (run / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines])
    assert losses[1] == pytest.approx(losses[0], abs=1e-5) and len(losses[0]) == 4
