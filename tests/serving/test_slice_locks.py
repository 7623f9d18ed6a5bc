"""A slice is served by one process at a time, until that process ends in whatever way."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.serving.plans import Placed, cpu_plan
from torchsplit_core.serving.frontend.server import prepare_serving, reserve_slices
from torchsplit_core.serving.frontend.slice_locks import lock_devices
from torchsplit_core.serving.load_test.measurement import measure
from torchsplit_core.serving.plan import BoundSlice
from torchsplit_core.serving.settings import ServeSettings
from torchsplit_core.values import Device, InputFault

UUID = "MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"
GPU = BoundSlice(
    "gpu0/1g.10gb@0", "gpu0", "1g.10gb", 0,
    Device("mig", f"mig:{UUID}", "A100", "A100-80GB", "1g.10gb", "GPU-1", 0, UUID, None, None),
)  # fmt: skip


def on_cores(*cores: int) -> BoundSlice:
    device = Device("cpu", "cpu:1c", "cores", "CPU", "1c", "cpu", None, None, None, None)
    return BoundSlice(f"host0/1c@{cores[0]}", "host0", "1c", cores[0], device, cores)


HOLDER = """
import sys
from tests.serving.test_slice_locks import GPU, on_cores
from torchsplit_core.serving.frontend.slice_locks import lock_devices

with lock_devices([on_cores(3, 4), GPU]):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder() -> Iterator[subprocess.Popen[str]]:
    """A process that has the cores 3 and 4 and a MIG instance."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_a_slice_that_is_served_is_refused_until_its_process_is_killed():
    with holder() as process:
        with (
            pytest.raises(InputFault, match=rf"host0/1c@4: is taken: process {process.pid} serves on core 4"),
            lock_devices([on_cores(0), on_cores(4)]),
        ):
            pass
        with (
            pytest.raises(InputFault, match=f"is taken: process {process.pid} serves on {UUID}"),
            lock_devices([GPU]),
        ):
            pass
        # What was taken before the refusal is free again, and others are untouched.
        with lock_devices([on_cores(0), on_cores(5)]):
            pass
        process.kill()
        process.wait()
        with lock_devices([on_cores(3, 4), GPU]):
            pass


def test_serve_and_measure_take_the_slices_and_stand_ins_share_them():
    plan, request = cpu_plan([Placed("bert")], {"bert": "sample:bert"}, cores=1)
    settings = ServeSettings(port=0)
    roster = prepare_serving(plan, request, settings)
    with reserve_slices(roster, settings):
        with pytest.raises(InputFault, match=f"is taken: process {os.getpid()} serves on core"):
            measure(plan, request, settings)
        shared = ServeSettings(port=0, stand_in="cpu")
        with reserve_slices(prepare_serving(plan, request, shared), shared):
            pass


def test_the_locks_folder_is_this_users_alone(tmp_path, monkeypatch):
    with lock_devices([on_cores(0)]):
        pass
    folder = tmp_path / "torchsplit"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(InputFault, match="this user alone"), lock_devices([on_cores(0)]):
        pass
    folder.chmod(0o700)
    folder.rename(tmp_path / "other")
    folder.symlink_to(tmp_path / "other")
    with pytest.raises(InputFault, match="this user alone"), lock_devices([on_cores(0)]):
        pass
    # A folder that is named and not there: the one for temporary files.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with lock_devices([on_cores(0)]):
        assert (tmp_path / f"torchsplit-{os.getuid()}" / "core-0.lock").read_text() == str(os.getpid())
