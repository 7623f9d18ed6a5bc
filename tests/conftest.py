"""Every test run has a store of its own: nothing of the user's is read or written, nothing measured is taken over."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

# Read by OpenMP when torch is loaded. Two workers share the cores: threads that spin while they wait take
# time from the other worker.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


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
