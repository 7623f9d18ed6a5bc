"""Graphs for the tests of profiling, and a folder that their models may write to."""

from collections.abc import Iterator
from typing import Any

import pytest

from torchsplit_core.isolation import run_limited
from torchsplit_core.profiling.measuring import measurement


@pytest.fixture(autouse=True, scope="session")
def models_write_beside_themselves() -> Iterator[None]:
    """The models of these tests count their runs in a file beside them, which isolation would keep them from."""

    def call(target, arguments, **options):
        file, python, _ = arguments["source"].rpartition(".py:")
        writable = [*options.pop("writable", ()), *([file.rpartition("/")[0]] if python else [])]
        return run_limited(target, arguments, writable=writable, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurement, "run_limited", call)
        yield


@pytest.fixture
def make_graph() -> Any:
    """A function (model, args of batch 2) → TorchGraph."""
    # Loads torch, which tests without this fixture do without.
    from tests.support.profiling.export import export, to_graph

    return lambda model, args: to_graph(export(model, args))
