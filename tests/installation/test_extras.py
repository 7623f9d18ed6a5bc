"""The pins of pyproject.toml are those of the one full list; what an extra lacks is said in one message."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchsplit_core import bundle, extras
from torchsplit_core.cli.command import main
from torchsplit_core.isolation.child import MessageWriter

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DECLARED: dict[str, list[str]] = PROJECT["optional-dependencies"]
MODULES = packages_distributions()
"""Of all that is installed: module → the packages that have it."""
APART = ("ray", "tensorboard", "data", "llm")
"""Extras that `all` and requirements.txt leave out."""


def listed(name: str) -> set[str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith(("#", "-r"))}


def pins(extra: str) -> set[str]:
    """Those of an extra, and of the extras that it names."""
    found = set()
    for one in DECLARED[extra]:
        named = one.removeprefix("torchsplit[").removesuffix("]").split(",") if "[" in one else ()
        found |= set.union(*map(pins, named)) if named else {one}
    return found


def test_base_and_all_are_the_full_list_and_the_others_pin_what_the_tests_run():
    assert set(PROJECT["dependencies"]) | pins("all") == listed("requirements.txt")
    for extra in APART:
        assert pins(extra) <= listed("requirements-dev.txt") | listed("requirements.txt")
    assert set(DECLARED) == {"all", *APART, *extras.EXTRA_MODULES}


@pytest.mark.parametrize("extra", extras.EXTRA_MODULES)
def test_the_modules_of_an_extra_are_those_of_its_packages(extra):
    names = {pin.partition("==")[0] for pin in pins(extra)}
    owners = [names & set(MODULES[module]) for module in extras.EXTRA_MODULES[extra]]
    assert all(owners) and set.union(*owners) == names


def test_a_command_that_lacks_a_package_says_which_extra_has_it(monkeypatch, capsys):
    monkeypatch.setitem(extras.EXTRA_MODULES, "app", ("json", "absent_package"))
    assert main(["app"]) == 2
    told = "torchsplit app needs absent_package. Install torchsplit[app].\n"
    assert capsys.readouterr() == ("", told)


def test_an_import_that_fails_deep_inside_is_the_same_message(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    monkeypatch.delitem(sys.modules, "torchsplit_core.serving.router.server", raising=False)
    assert main(["route", str(ROOT / "examples" / "routes.json")]) == 2
    assert capsys.readouterr().err == "torchsplit route needs uvloop. Install torchsplit[serve].\n"


def test_a_child_that_lacks_a_package_answers_with_the_remedy():
    reading, writing = os.pipe()
    error = ModuleNotFoundError("No module named 'torch'", name="torch.nn")
    MessageWriter(writing).failure(ModuleNotFoundError, error, None)
    told = os.read(reading, 4096).decode()
    os.close(reading)
    assert '"fault"' in told and "needs torch" in told and "torchsplit[trace]" in told


@pytest.mark.parametrize("error", [
    ModuleNotFoundError("No module named 'their_own'", name="their_own"), ModuleNotFoundError("none named"),
    ImportError("cannot import name 'x' from 'torch'", name="torch"), ValueError("torch"),
])  # fmt: skip
def test_other_faults_are_not_taken_for_a_missing_package(error):
    assert extras.missing_package(error) is None


def test_in_a_checkout_all_lies_beside_the_core():
    assert bundle.root() == ROOT
    assert bundle.python_path().split(os.pathsep)[0] == str(ROOT)
    assert Path(str(bundle.sample_models().__file__)).parent == ROOT / "sample_models"


def test_what_python_finds_by_itself_does_not_come_before_its_own_modules(monkeypatch, tmp_path):
    core = tmp_path / "torchsplit_core"
    monkeypatch.setattr(bundle, "CORE", core)
    monkeypatch.setattr(bundle, "root", lambda: core / bundle.FOLDER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(("/theirs", "", str(tmp_path))))
    assert bundle.python_path().split(os.pathsep) == [str(tmp_path), str(core / bundle.FOLDER), "/theirs"]
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path)])
    monkeypatch.delenv("PYTHONPATH")
    assert bundle.python_path() == str(core / bundle.FOLDER)


def test_the_container_of_the_dashboard_keeps_hadolints_rules():
    done = subprocess.run(
        [str(Path(sys.executable).with_name("hadolint")), str(ROOT / "Dockerfile")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
