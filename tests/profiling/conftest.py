"""Graphs for the tests of profiling."""

from __future__ import annotations

from typing import Any

import pytest
from profiling_export import export, to_graph


@pytest.fixture
def make_graph() -> Any:
    """A function (model, args of batch 2) → TorchGraph."""
    return lambda model, args: to_graph(export(model, args))
