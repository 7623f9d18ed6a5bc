"""Standard streams, folders that are not there, defaults of a site, completion, and help that says its units."""

import argparse
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchsplit_core.cli.command import COMMANDS, _parser, main
from torchsplit_core.files import read_file

EXAMPLES = ROOT / "examples"
REQUEST = EXAMPLES / "plan_request.json"
PROFILE = EXAMPLES / "profile.json"


def given(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_a_request_comes_in_and_its_plan_goes_out_by_standard_streams(monkeypatch, capsys):
    given(monkeypatch, REQUEST.read_text())
    assert main(["plan", "-", "-o", "-"]) == 0
    plan = capsys.readouterr().out
    assert json.loads(plan)["status"] == "optimal"
    given(monkeypatch, plan)
    assert main(["simulate", "-", "--request", str(REQUEST), "--requests", "500"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "torchsplit.simulation"


@pytest.mark.parametrize(("text", "words"), [
    (REQUEST.read_text()[:400], "standard input"),
    ("", "standard input"),
    ('{"format": "torchsplit.plan"}', "is a torchsplit.plan file"),
])  # fmt: skip
def test_standard_input_that_ends_half_way_is_one_message(text, words, monkeypatch, capsys):
    given(monkeypatch, text)
    assert main(["plan", "-"]) == 2
    printed = capsys.readouterr()
    assert words in printed.err and printed.err.count("\n") == 1 and not printed.out


def test_standard_input_is_read_once(monkeypatch, stderr_of):
    given(monkeypatch, PROFILE.read_text())
    assert "standard input: is named twice" in stderr_of("request", "-", "-", "--gpus", "1xA100-80GB")


def test_a_table_comes_by_standard_input(monkeypatch, capsys):
    given(monkeypatch, (EXAMPLES / "profiles" / "measured.csv").read_text())
    assert main(["estimate", "-", "--to", "A30-24GB", "-q"]) == 0
    assert "A30-24GB" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [
    ["plan", str(REQUEST), "-o", "nowhere/plan.json"],
    ["plan", str(REQUEST), "--save-request", "nowhere/r.json"],
    ["deploy", str(EXAMPLES / "plan.json"), "-o", "nowhere/files"],
    ["request", str(PROFILE), "--gpus", "1xA100-80GB", "-o", "nowhere/r.json"],
])  # fmt: skip
def test_no_folder_of_a_mistyped_path_is_made(arguments, tmp_path, monkeypatch, stderr_of):
    monkeypatch.chdir(tmp_path)
    assert "the folder 'nowhere' is not there" in stderr_of(*arguments)
    assert not list(tmp_path.iterdir())


def test_a_folder_is_no_file(tmp_path, stderr_of):
    assert "is a folder" in stderr_of("plan", REQUEST, "-o", tmp_path)


def test_quiet_leaves_warnings_and_faults(tmp_path, capsys, stderr_of):
    assert main(["plan", str(REQUEST), "-o", str(tmp_path / "plan.json"), "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert "nothing.json" in stderr_of("plan", "nothing.json", "--quiet")
    none = ["request", str(PROFILE), "--gpus", "1xA30-24GB", "-q", "-o", str(tmp_path / "r.json")]
    assert "warning: diamond has no profile row" in stderr_of(*none, code=0)


def test_a_plan_is_searched_for_as_long_as_asked(tmp_path, stderr_of):
    saved = tmp_path / "request.json"
    command = [
        "plan", str(REQUEST), "--time-limit", "7", "--save-request", str(saved), "-o", str(tmp_path / "p"),
    ]  # fmt: skip
    assert "solver.time_limit_s 7" in stderr_of(*command, code=0)
    assert read_file(saved)[1].solver.time_limit_s == 7
    assert main(["plan", str(REQUEST), "--time-limit", "-1"]) == 2


class TestDefaults:
    """The fleet and the time limit of a site."""

    COMMAND = ["request", str(PROFILE), "-o", "r.json"]

    @pytest.fixture(autouse=True)
    def _here(self, tmp_path, monkeypatch) -> None:
        monkeypatch.chdir(tmp_path)
        for name in ("TORCHSPLIT_GPUS", "TORCHSPLIT_TIME_LIMIT", "TORCHSPLIT_CONFIG"):
            monkeypatch.delenv(name, raising=False)

    def test_the_command_line_goes_before_the_environment_before_the_file(self, monkeypatch, stderr_of):
        Path("torchsplit.toml").write_text('gpus = "2xA100-80GB"\ntime_limit = 11\n')
        assert "the fleet is 2xA100-80GB, of torchsplit.toml" in stderr_of(*self.COMMAND, code=0)
        request = read_file("r.json")[1]
        assert (request.gpus[0].type, request.gpus[0].count, request.solver.time_limit_s) == (
            "A100-80GB", 2, 11,
        )  # fmt: skip
        monkeypatch.setenv("TORCHSPLIT_GPUS", "3xA100-80GB")
        monkeypatch.setenv("TORCHSPLIT_TIME_LIMIT", "12")
        assert main(self.COMMAND) == 0
        request = read_file("r.json")[1]
        assert (request.gpus[0].count, request.solver.time_limit_s) == (3, 12)
        assert main([*self.COMMAND, "--gpus", "4xA100-80GB", "--time-limit", "13"]) == 0
        request = read_file("r.json")[1]
        assert (request.gpus[0].count, request.solver.time_limit_s) == (4, 13)

    @pytest.mark.parametrize(("text", "words"), [
        ('gpu = "1xA100-80GB"', "unknown key 'gpu'. Did you mean gpus?"),
        ("gpus = 3", "gpus: is 3, not a fleet"),
        ("gpus = ", "is not TOML"),
        ('gpus = "1xA100-80GB"\ntime_limit = -4', "time_limit: is -4, not seconds above 0"),
        ('gpus = "1xA100-80GB"\ntime_limit = true', "time_limit: is True"),
        ('gpus = "1xA100-80GB"\ntime_limit = nan', "time_limit: is nan"),
    ])  # fmt: skip
    def test_what_is_wrong_in_the_file_is_one_message(self, text, words, stderr_of):
        Path("torchsplit.toml").write_text(text)
        assert words in stderr_of(*self.COMMAND)

    def test_without_any_the_option_is_missing(self, stderr_of):
        assert "--gpus is missing" in stderr_of(*self.COMMAND)

    def test_a_file_that_is_named_and_not_there_is_a_fault(self, monkeypatch, stderr_of):
        monkeypatch.setenv("TORCHSPLIT_CONFIG", "site.toml")
        assert "TORCHSPLIT_CONFIG: there is no file 'site.toml'" in stderr_of(*self.COMMAND)


def parsers() -> dict[str, argparse.ArgumentParser]:
    parser = _parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for _, _, texts in COMMANDS:
        commands.choices[next(iter(texts))]._declare()
    return dict(commands.choices)


def test_every_option_has_its_word_and_its_unit():
    bare = [
        f"{name} {action.option_strings or action.dest}"
        for name, made in parsers().items()
        for action in made._actions
        if not action.help
        or (action.option_strings and action.nargs != 0 and not action.metavar and not action.choices)
    ]
    assert bare == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_for_each_shell(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "torchsplit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "offered"), [("torchsplit pla", {"plan", "place"}), ("torchsplit plan --time", {"--time-limit"})]
)
def test_tab_completes_commands_and_options(line, offered, tmp_path):
    answer = tmp_path / "answer"
    environment = os.environ | {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line, "COMP_POINT": str(len(line)), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "torchsplit_core"], env=environment, check=False, capture_output=True
    )
    assert {word.strip() for word in answer.read_text().split("\n")} >= offered
