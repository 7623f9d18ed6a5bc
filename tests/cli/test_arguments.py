"""Arguments that are wrong: one message in the form of every fault, with the nearest names, and exit code 2."""

import pytest

from torchsplit_core.cli.command import main


@pytest.mark.parametrize(("line", "told"), [
    ("", "COMMAND is missing. See torchsplit --help."),
    ("simulat x", "unknown command 'simulat'. Did you mean simulate?"),
    ("plan", "plan: REQUEST is missing. See torchsplit plan --help."),
    ("plan a b", "plan: unexpected argument 'b'. See torchsplit plan --help."),
    ("plan a --sper=1", "plan: unknown option '--sper'. Did you mean --spare?"),
    ("plan a --spare 3", "--spare: unknown choice 3. Known choices: 0, 1."),
    ("plan a --spare two", "--spare: is 'two', not a whole number. Give a whole number."),
    ("plan a --spare", "--spare: is given without a value. See torchsplit plan --help."),
    ("plan a --explain=2", "--explain: is given the value '2', and takes none. See torchsplit plan --help."),
    ("partition a --memory 3GB", "--memory: is '3GB', not a number. Give a number."),
    ("request a --objective leximn", "--objective: unknown choice 'leximn'. Did you mean leximin?"),
    ("train a --write-fleet k8s", "--write-fleet: unknown choice 'k8s'. Did you mean jobset?"),
    ("deploy a -o b --format k8s", "--format: unknown format 'k8s'. Did you mean kubernetes?"),
    ("deploy a -o b --format compos", "--format: unknown format 'compos'. Did you mean compose?"),
])  # fmt: skip
def test_what_is_wrong_is_said_with_the_nearest(line, told, capsys):
    assert main(line.split()) == 2
    said = capsys.readouterr()
    assert said.err == f"torchsplit: {told}\n" and not said.out


def test_an_unknown_command_is_offered_the_nearest(capsys):
    assert main(["plna"]) == 2
    assert capsys.readouterr().err.startswith("torchsplit: unknown command 'plna'. Did you mean plan")


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_leave_with_0(option, capsys):
    with pytest.raises(SystemExit) as left:
        main([option])
    assert not left.value.code and "torchsplit" in capsys.readouterr().out
