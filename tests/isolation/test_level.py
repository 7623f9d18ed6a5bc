"""Which level is chosen where the kernel refuses something, and that its words are true of it."""

import dataclasses
import errno
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.support.paths import ROOT
from torchsplit_core.isolation import available_levels, isolation_level, run_limited
from torchsplit_core.isolation.cost import set_up_seconds
from torchsplit_core.isolation.sandbox import current_sandbox
from torchsplit_core.isolation.sandbox.access import is_wide, readable_beside
from torchsplit_core.isolation.sandbox.level import NAMES, Availability, levels_in
from torchsplit_core.values import InputFault

TOLD = """
import json
from torchsplit_core.isolation import isolation_level, run_limited
from torchsplit_core.values import InputFault
level = isolation_level()
found = run_limited("tests.support.isolation.targets:echo", {"n": 1})
print(json.dumps([level.name, level.text, found["got"]]))
"""


def told(forbidden: str, code: str = TOLD, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a process says for which these calls fail."""
    return subprocess.run(
        [sys.executable, "-P", str(ROOT / "tests" / "support" / "isolation" / "seccomp.py"), forbidden, code],
        env=os.environ | environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("forbidden", "name", "words"), [
    ("unshare=EPERM", "landlock", "No namespaces: .*Operation not permitted"),
    ("mount=EACCES", "landlock", "No namespaces: .*Permission denied"),
    ("mount_setattr=ENOSYS", "landlock", "No namespaces: .*not implemented"),
    ("unshare=EPERM,landlock_create_ruleset=ENOSYS", "limits", "It can read and change what you can"),
    ("unshare=EPERM,landlock_create_ruleset=EOPNOTSUPP", "limits", "No Landlock"),
])  # fmt: skip
def test_the_best_level_that_the_kernel_allows_is_taken_and_works(forbidden, name, words):
    if name == "landlock" and "landlock" not in available_levels():
        name, words = "limits", "No Landlock"
    done = told(forbidden)
    assert done.returncode == 0, done.stderr
    found, text, got = json.loads(done.stdout)
    assert (found, got) == (name, {"n": 1})
    assert re.search(words, text), text


def test_namespaces_without_landlock_are_still_namespaces():
    if "namespaces" not in available_levels():
        assert isolation_level().name != "namespaces"
        return
    done = told("landlock_create_ruleset=ENOSYS")
    assert done.returncode == 0, done.stderr
    name, text, _ = json.loads(done.stdout)
    assert name == "namespaces" and "Landlock" not in text


def test_a_level_that_is_asked_for_and_not_there_is_a_fault_and_nothing_runs():
    done = told("unshare=EPERM", TORCHSPLIT_ISOLATION="namespaces")
    assert done.returncode == 1 and done.stdout == ""
    assert "InputFault: TORCHSPLIT_ISOLATION: is namespaces, which this machine does not offer" in done.stderr
    assert "Operation not permitted" in done.stderr


def test_isolation_that_fails_after_it_was_found_to_work_is_a_fault_and_nothing_runs():
    later = (
        "import torchsplit_core.isolation.sandbox.level as own; own.probe_availability = lambda: "
        "own.Availability('', 1, True)\n"
    )
    done = told("unshare=EPERM", later + TOLD)
    assert done.returncode == 1 and done.stdout == ""
    assert "could not be isolated as this machine allowed before" in done.stderr


def test_a_name_that_is_no_level_is_a_fault(monkeypatch):
    monkeypatch.setenv("TORCHSPLIT_ISOLATION", "chroot")
    with pytest.raises(InputFault, match="namespaces, landlock, limits"):
        isolation_level()


def test_each_level_that_is_asked_for_is_the_one_that_runs(level):
    assert isolation_level().name == level
    assert run_limited("tests.support.isolation.targets:own_level", {}) == level
    assert set_up_seconds(1)[0] > 0


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize(("abi", "missing", "of_sockets"), [
    (0, (), ()),
    (1, ("cutting files", "signals"), ("TCP", "abstract unix sockets")),
    (3, ("signals",), ("TCP", "abstract unix sockets")),
    (4, ("signals",), ("abstract unix sockets",)),
    (5, ("signals",), ("abstract unix sockets",)),
    (6, (), ()),
    (7, (), ()),
])  # fmt: skip
def test_the_words_on_landlock_say_what_its_abi_lacks(abi, missing, of_sockets, held, monkeypatch):
    monkeypatch.setattr(
        "torchsplit_core.isolation.sandbox.level.probe_availability",
        lambda: Availability("refused here", abi, held),
    )
    monkeypatch.delenv("TORCHSPLIT_ISOLATION", raising=False)
    found = isolation_level()
    assert found.name == ("landlock" if abi else "limits") and "refused here" in found.text
    lacks = [word for word in (*missing, *of_sockets) if word in found.text.partition("does not hold ")[2]]
    assert lacks == [*missing, *(() if held else of_sockets)]
    if abi:
        assert ("has no network" in found.text) is held
        assert ("Not held: UDP, named sockets" in found.text) is not held
        assert ("opens no TCP connection" in found.text) is (not held and abi >= 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.name = "namespaces"  # type: ignore[misc]


def test_an_offer_of_nothing_leaves_the_limits():
    assert levels_in(Availability("no", 0, True)) == ("limits",)
    assert levels_in(Availability("", 0, False)) == ("namespaces", "limits")
    assert levels_in(Availability("", 3, True)) == NAMES


def test_the_remedy_for_a_missing_file_is_true_of_wide_folders_too(monkeypatch):
    monkeypatch.setattr(current_sandbox, "level", "landlock")
    words = current_sandbox.remedy_for(FileNotFoundError(errno.ENOENT, "No such file or directory"))
    assert "only the .py files of one that holds your home, the store or temporary files" in words


def test_wide_folders_are_those_that_hold_what_is_private(tmp_path, monkeypatch):
    home, store = tmp_path / "user" / "home", tmp_path / "data" / "store"
    for folder in (home / "project", store):
        folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TORCHSPLIT_HOME", str(store))
    (tmp_path / "link").symlink_to(home)
    wide = ["/", "/tmp", home, home.parent, store, store.parent, tmp_path, tmp_path / "link"]
    assert all(is_wide(folder) for folder in wide)
    assert not any(is_wide(folder) for folder in (home / "project", "/usr", store / "inside", ROOT))
    for folder in (home, home / "project"):
        for name in ("net.py", "part.py", "private.txt"):
            (folder / name).write_text("")
    assert readable_beside(home / "project" / "net.py") == (str(home / "project"),)
    assert readable_beside(home / "net.py") == (str(home / "net.py"), str(home / "part.py"))


def answers(*arguments: Any, **options: Any) -> list[str]:
    """What came of a child that says text with control characters: progress, then its fault."""
    heard = []
    with pytest.raises(InputFault) as caught:
        run_limited(*arguments, progress=lambda share, text: heard.append(text), **options)
    return [*heard, str(caught.value)]


@pytest.mark.parametrize("how", ["fault", "error", "exit"])
def test_no_control_character_of_a_child_reaches_a_person(how):
    text = "a\x1b[2J\x1b]0;title\x07b\r\u202ec\u2066\ud800\x9b1m"
    for said in answers("tests.support.isolation.targets:say", {"how": how, "text": text}):
        assert said.isprintable() and ("\\x1b[2J" in said or "\\x9b1m" in said)


def test_no_line_of_a_child_looks_like_one_of_ours():
    progress, fault = answers(
        "tests.support.isolation.targets:say", {"how": "exit", "text": "a\ntorchsplit: done"}
    )
    assert progress == "a torchsplit: done" and "Last output: torchsplit: done" in fault
