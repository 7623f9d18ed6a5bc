"""A child of the tests that begins with torch loaded stands where one that starts as users' do stands."""

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.isolation.processes import gone, mark
from tests.support.isolation.warm import WarmSubprocess
from torchsplit_core.isolation import Limits, launch, run_limited
from torchsplit_core.values import InputFault

pytestmark = pytest.mark.torch

Switch = Callable[[bool], None]
TARGETS = "tests.support.isolation.targets"


@pytest.fixture
def warm(monkeypatch) -> Switch:
    """Switches between children of both kinds."""

    def switch(on):
        monkeypatch.setattr(launch, "subprocess", WarmSubprocess if on else subprocess)

    return switch


def ask(function: str, **arguments: Any) -> Any:
    return run_limited(f"{TARGETS}:{function}", arguments, subject="the model", limits=Limits(wall_s=60))


def test_a_warm_child_stands_as_a_cold_one_does(level, warm, monkeypatch):
    monkeypatch.setenv("TORCHSPLIT_TEST_SECRET", "hush")
    found = []
    for on in (False, True):
        warm(on)
        found.append(ask("surroundings"))
    assert [one.pop("torch") for one in found] == [False, True]
    assert found[0] == found[1]
    assert found[0]["level"] == level and "hush" not in found[0]["environment"].values()


@pytest.mark.parametrize("function", ["fault", "error", "leave", "crash"])
def test_a_warm_child_that_fails_or_leaves_is_told_as_a_cold_one_is(function, warm):
    told = []
    for on in (False, True):
        warm(on)
        with pytest.raises(InputFault) as caught:
            ask(function)
        told.append(str(caught.value))
    assert told[0] == told[1]


def test_a_warm_child_ends_with_its_time_and_leaves_nothing(warm):
    warm(True)
    name = mark()
    with pytest.raises(InputFault, match=r"still running after 1\.5 s"):
        run_limited(f"{TARGETS}:forever", {"mark": name}, subject="the model", limits=Limits(wall_s=1.5))
    assert gone(name)
