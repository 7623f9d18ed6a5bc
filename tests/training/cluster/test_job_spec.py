"""How many nodes a run has, what its name is, and what is refused, each by one message."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.training.fleets import job, request
from torchsplit_core.cli import main
from torchsplit_core.files import read_file

STRATEGY = str(ROOT / "examples" / "training" / "two_ranks.json")


def test_nodes_are_those_of_the_fleet_or_as_they_are_said() -> None:
    found = job().fleet
    assert (found.least, found.most, found.processes, found.gpu) == (2, 2, 4, "a100")
    found = job(nodes=(1, 4)).fleet
    assert (found.least, found.most, found.processes) == (1, 4, 4), "a node has the GPUs that it has"
    found = job(processes=2).fleet
    assert (found.least, found.most, found.processes) == (4, 4, 2)
    outcome = read_file(str(ROOT / "examples" / "strategy.json"))[1]
    first = outcome.candidates[0]
    changes = {"data": 8, "tensor": 1, "pipeline": 1, "context": 1, "expert": 1, "interleave": 1}
    second = replace(first, shard="fsdp", offload="none", **changes)
    found = job(given=replace(outcome, candidates=(first, second)), candidate=2, nodes=(2, 2))
    assert (found.fleet.processes, found.fleet.gpu, found.options) == (4, "", ("--candidate=2",))
    assert job(gpus=False).fleet.gpu is None


@pytest.mark.parametrize(("folder", "name"), [
    ("runs/Llama 7B", "llama-7b"), ("7b", "run-7b"), ("a" * 90, None), ("$(x)`y`", "x-y"), ("--", None),
])  # fmt: skip
def test_a_job_is_called_after_its_folder(folder: str, name: str | None) -> None:
    found = job(folder=folder).name
    assert name in (None, found) and found[0].isalpha() and len(found) <= 46


@pytest.mark.parametrize(("given", "message"), [
    (["--nnodes", "0:2"], "--nnodes: is 0:2, below the least value 1"),
    (["--nnodes", "2:1"], "--nnodes: is 2:1, the most below the least"),
    (["--nnodes", "x"], "--nnodes: is 'x', not MIN:MAX"),
    (["--nnodes", "1:16"], "--processes"),
    (["--processes", "0"], "--nnodes"),
    (["--processes", "3"], "the 2 devices of the strategy make no equal nodes of 3 processes"),
    (["--cores", "0"], "--cores"),
    (["--rendezvous", "h:1"], "--rendezvous"),
    (["--node", "a"], "--node"),
    (["--image", "a b"], "--image"),
    (["--claim", "A"], "--claim"),
    (["--shares", "1,2,3"], "has 3 numbers for 2 data-parallel ranks"),
    (["--balance"], "--balance"),
])  # fmt: skip
def test_what_no_cluster_could_start_is_one_message(
    given: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "files"
    command = ["train", "sample:bert", "--strategy", STRATEGY, "--write-fleet", "jobset", "-o", str(files)]
    assert main([*command, *given]) == 2
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1 and not files.exists()


def test_options_of_the_files_need_them_and_unequal_nodes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["train", "sample:bert", "--strategy", STRATEGY, "-o", str(tmp_path / "run")]
    assert main([*run, "--image", "x"]) == 2
    assert "--write-fleet" in capsys.readouterr().err
    with pytest.raises(ValueError, match="2 kinds of nodes"):
        job(given=request(entries=2))
    with pytest.raises(ValueError, match=r"is a \.pt2, which has no data"):
        (tmp_path / "m.pt2").touch()
        job(str(tmp_path / "m.pt2"))


def test_the_command_writes_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "sample:bert", "--strategy", STRATEGY, "--write-fleet", "slurm", "-o", str(tmp_path)]
    assert (
        main([*command, "--metrics-port", "9100", "--communication", "lossy=bf16+powersgd,powersgd_rank=2"])
        == 0
    )
    told = capsys.readouterr()
    assert told.out.split() == [str(tmp_path / "train.sbatch"), str(tmp_path / "strategy.json")]
    assert "1 node of 2 processes on cores" in told.err
    assert "--communication=lossy=bf16+powersgd,powersgd_rank=2" in (tmp_path / "train.sbatch").read_text()
    assert "--metrics-port=9100 --metrics-host=127.0.0.1" in (tmp_path / "train.sbatch").read_text()
