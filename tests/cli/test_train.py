"""The command train: what it refuses before it starts anything, one clear message each."""

import pytest

from tests.support.paths import ROOT
from torchsplit_core.cli import main

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
