"""What executes a model works inside the isolation for a user without rights, as it does for root."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchsplit_core.isolation import available_levels

pytestmark = pytest.mark.torch


@pytest.mark.repeated
def test_a_user_without_rights_profiles_exports_and_runs_at_each_level():
    with tempfile.TemporaryDirectory(prefix="torchsplit-tests-") as folder:
        Path(folder).chmod(0o755)
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "support" / "isolation" / "as_nobody.py"), folder],
            cwd=folder, capture_output=True, text=True, check=False, timeout=280,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    user, *lines = done.stdout.splitlines()
    assert user == f"uid {os.geteuid() or 65534}"
    levels = [name for name in available_levels() if name != "limits"]
    assert lines == [f"{name} {done}" for name in levels for done in ("measured 1", "ran (2, 16)")]
