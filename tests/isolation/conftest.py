"""Every level of isolation this machine offers, for the tests that try to get out of it."""

import os
from pathlib import Path

import pytest

from torchsplit_core.isolation import available_levels


@pytest.fixture(autouse=True, scope="session")
def store_to_reach(own_store: None) -> None:
    """A listing of a store that nobody has made fails at every level, and shows nothing of isolation."""
    Path(os.environ["TORCHSPLIT_HOME"]).mkdir(exist_ok=True)


@pytest.fixture(params=available_levels())
def level(request, monkeypatch) -> str:
    """The children of the test run at this level."""
    monkeypatch.setenv("TORCHSPLIT_ISOLATION", request.param)
    return str(request.param)


@pytest.fixture(params=[name for name in available_levels() if name != "limits"])
def holding(request, monkeypatch) -> str:
    """The same, of the levels that hold files."""
    monkeypatch.setenv("TORCHSPLIT_ISOLATION", request.param)
    return str(request.param)


@pytest.fixture(params=dict.fromkeys([available_levels()[0], "limits"]))
def counting(request, monkeypatch) -> str:
    """The best level and the last: in namespaces all other processes are counted, elsewhere the descendants."""
    monkeypatch.setenv("TORCHSPLIT_ISOLATION", request.param)
    return str(request.param)
