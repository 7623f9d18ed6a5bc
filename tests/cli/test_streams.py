"""Standard streams that cannot be written: standard error stops nothing, an outcome that is lost is said."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.seeds import repeated

SIMULATE = f"simulate {ROOT / 'examples' / 'simulation_request.json'}"


def run(arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command line with its redirections, by a shell, as users write them."""
    command = f'"{sys.executable}" -m torchsplit_core {arguments}'
    return subprocess.run(
        ["sh", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
@repeated("stream", ["2>&-", ">&-", "2>/dev/full", "2>&- >&-"], kept=2)
def test_a_stream_that_takes_nothing_stops_no_command(tmp_path, stream):
    done = run(f"{SIMULATE} -o out.json {stream}", tmp_path)
    assert done.returncode == 0 and (tmp_path / "out.json").stat().st_size > 0
    assert "Traceback" not in done.stderr and done.stdout == ""
    assert run(f"simulate nowhere.json {stream}", tmp_path).returncode == 2
    assert run(f"unknown {stream}", tmp_path).returncode == 2


@pytest.mark.slow
def test_an_outcome_that_a_full_disk_loses_is_said(tmp_path):
    done = run(f"{SIMULATE} >/dev/full", tmp_path)
    assert done.returncode == 2 and "cannot be written: no space left on device" in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.slow
def test_a_reader_that_has_enough_is_no_fault(tmp_path):
    done = run(f"{SIMULATE} | head -c 1", tmp_path)
    assert done.stdout == "{" and "Exception" not in done.stderr
