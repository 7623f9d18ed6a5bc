"""Every test run has a store of its own: nothing of the user's is read or written, nothing measured is taken over."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Read by OpenMP when torch is loaded. Two workers share the cores: threads that spin while they wait take
# time from the other worker.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

ROOT = Path(__file__).resolve().parents[1]
LONG_FIRST = (
    "browser/test_browser_profile.py",
    "tracing/test_tracing_coverage.py",
    "profiling/test_profiling_measure.py",
    "isolation/test_isolation_nobody.py",
    "browser/test_browser_plan.py",
    "core/test_core_profile_run.py",
    "core/test_core_foreign.py",
    "browser/test_browser_login.py",
    "core/test_core_disk.py",
    "browser/test_browser_access.py",
    "partitioning/test_partitioning_transport.py",
    "browser/test_browser_doors.py",
    "browser/test_browser_partition.py",
    "partitioning/test_partitioning_extract.py",
    "browser/test_browser_explorer.py",
    "partitioning/test_partitioning_run.py",
    "planning/test_planning_insight_proofs.py",
    "core/test_core_cli.py",
    "curves/test_curves_library.py",
    "partitioning/test_partitioning_bounds.py",
    "tracing/test_tracing_hostile.py",
    "browser/test_browser_preparation.py",
    "profiling/test_profiling_peak.py",
    "profiling/test_profiling_flops.py",
    "app/test_profile_resume.py",
)
"""Modules that take long, longest first: one that came last would leave the other workers idle."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long modules first. `pytest -n` keeps this order with --no-loadscope-reorder."""
    places = {ROOT / "tests" / name: place for place, name in enumerate(LONG_FIRST)}
    assert all(path.exists() for path in places), "LONG_FIRST names a module that is gone"
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(autouse=True, scope="session")
def own_store() -> Iterator[None]:
    """TORCHSPLIT_HOME for this process and the commands its tests start."""
    folder = tempfile.mkdtemp(prefix="torchsplit-tests-")
    before = os.environ.get("TORCHSPLIT_HOME")
    os.environ["TORCHSPLIT_HOME"] = folder
    yield
    if before is None:
        del os.environ["TORCHSPLIT_HOME"]
    else:
        os.environ["TORCHSPLIT_HOME"] = before
    shutil.rmtree(folder, ignore_errors=True)
