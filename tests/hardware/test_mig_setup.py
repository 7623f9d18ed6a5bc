"""Slices for the time of a measurement: made, given back, and mended after faults and kills. All on replays."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.hardware.listings import A30_LAYOUT as A30
from tests.support.hardware.listings import layout, replay
from tests.support.paths import ROOT
from torchsplit_core.hardware import NvmlFault, restore_from_journal, temporary_slices
from torchsplit_core.hardware.mig_journal import take_journal
from torchsplit_core.hardware.replay import REPLAY_VARIABLE, ReplayNvml
from torchsplit_core.values import InputFault

CHANGES = (
    "create_gpu_instance", "create_compute_instance", "destroy_compute_instance", "destroy_gpu_instance",
)  # fmt: skip


def test_slices_in_place_of_all_and_back(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json")
    journal = tmp_path / "room" / "mig.json"
    assert layout(nvml) == A30
    with temporary_slices(nvml, 0, ["4g.24gb"], True, journal=journal) as devices:
        assert layout(nvml) == [("4g.24gb", 0, True)]
        assert journal.is_file()
        (device,) = devices
        assert (device.kind, device.profile, device.sm_count) == ("mig", "4g.24gb", 56)
        assert device.id == f"mig:{device.uuid}" == f"mig:{nvml.mig_devices(0)[0].uuid}"
        assert device.physical == nvml.gpu(0).uuid
    assert layout(nvml) == A30
    assert not journal.exists()


def test_what_is_there_is_used_and_left_alone(tmp_path):
    nvml = replay(tmp_path, "h100_nvl_four_slices.json")
    before = nvml.path.read_bytes()
    with temporary_slices(nvml, 0, ["1g.12gb", "2g.24gb"], True, journal=tmp_path / "j") as devices:
        assert [device.uuid for device in devices] == [
            "MIG-dbf12406-b888-52e8-80ee-025b6412f6e4",
            "MIG-7839bf6f-ba33-59f0-89eb-01c8d8c4134d",
        ]
        assert not (tmp_path / "j").exists()
    assert nvml.path.read_bytes() == before


def test_what_fits_beside_the_present_ones_disturbs_none_of_them(tmp_path):
    def only_one(data):
        del data["gpus"][0]["instances"][1:]

    nvml = replay(tmp_path, "a30_three_slices.json", only_one)
    kept = nvml.mig_devices(0)
    with temporary_slices(nvml, 0, ["1g.6gb", "1g.6gb"], True, journal=tmp_path / "j") as devices:
        assert layout(nvml) == A30
        assert len({device.uuid for device in devices}) == 2
        assert kept[0] in nvml.mig_devices(0)
    assert nvml.mig_devices(0) == kept


def test_an_instance_without_compute_instance_gets_one_and_loses_it_again(tmp_path):
    def bare(data):
        data["gpus"][0]["instances"][0]["compute_instance"] = None

    nvml = replay(tmp_path, "a30_three_slices.json", bare)
    assert len(nvml.mig_devices(0)) == 2
    with temporary_slices(nvml, 0, ["2g.12gb"], True, journal=tmp_path / "j") as devices:
        assert devices[0].profile == "2g.12gb" and layout(nvml) == A30
    assert layout(nvml) == [*A30[:2], ("2g.12gb", 2, False)]


def test_an_instance_with_media_extensions_is_kept_or_comes_back(tmp_path):
    def media(data):
        data["gpus"][0]["instances"][1]["profile"] = "1g.6gb+me"

    nvml = replay(tmp_path, "a30_three_slices.json", media)
    before = layout(nvml)
    assert ("1g.6gb+me", 0, True) in before
    with temporary_slices(nvml, 0, ["1g.6gb+me"], True, journal=tmp_path / "j"):
        assert layout(nvml) == before
    with temporary_slices(nvml, 0, ["1g.6gb", "2g.12gb", "1g.6gb"], True, journal=tmp_path / "j"):
        assert [name for name, _, _ in layout(nvml)] == ["2g.12gb", "1g.6gb", "1g.6gb"]
    assert layout(nvml) == before


def test_large_instances_are_made_first(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json")
    made = []

    class Noted(Dying):
        def create_gpu_instance(self, index: int, profile_id: int, start: int, size: int) -> int:
            made.append(size)
            return self.inner.create_gpu_instance(index, profile_id, start, size)

    noted = Noted(nvml, 10**6, Cut(), then_dead=True)
    with temporary_slices(noted, 0, ["4g.24gb"], True, journal=tmp_path / "j"):
        pass
    assert made == [4, 2, 1, 1]


def test_a_driver_that_only_says_it_is_done_is_found_out(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json")
    journal = tmp_path / "j"

    class Idle(Dying):
        idle = False

        def create_compute_instance(self, index: int, gpu_instance_id: int) -> int:
            return 0 if self.idle else self.inner.create_compute_instance(index, gpu_instance_id)

    idle = Idle(nvml, 10**6, Cut(), then_dead=True)
    with (
        pytest.raises(InputFault, match=r"the compute instance of 2g\.12gb at 2 is not as it was"),
        temporary_slices(idle, 0, ["4g.24gb"], True, journal=journal),
    ):
        idle.idle = True
    assert journal.is_file()


def test_a_failure_of_the_measurement_restores_too(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json")
    with (
        pytest.raises(RuntimeError, match="the model fell over"),
        temporary_slices(nvml, 0, ["4g.24gb"], True, journal=tmp_path / "j"),
    ):
        raise RuntimeError("the model fell over")
    assert layout(nvml) == A30 and not (tmp_path / "j").exists()


class Cut(BaseException):
    """The process ends here, as far as the code under test can tell."""


class Dying:
    """A replay that goes well for `calls` changes and then never again."""

    def __init__(self, inner: ReplayNvml, calls: int, fault: BaseException, *, then_dead: bool) -> None:
        self.inner, self.calls, self.fault, self.then_dead = inner, calls, fault, then_dead
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found

        def call(*arguments: Any) -> Any:
            if name in CHANGES:
                self.calls -= 1
                if self.calls == -1:
                    self.dead = self.then_dead
                    raise self.fault
            if self.dead:
                raise self.fault
            return found(*arguments)

        return call


def changes_needed(tmp_path: Path) -> int:
    """How many changes the A30's slices take, there and back: found by counting them."""
    counted = Dying(replay(tmp_path, "a30_three_slices.json"), 10**6, Cut(), then_dead=True)
    with temporary_slices(counted, 0, ["1g.6gb", "1g.6gb", "1g.6gb"], True, journal=tmp_path / "count"):
        pass
    return 10**6 - counted.calls


def test_cut_off_at_any_step_the_journal_brings_the_former_layout_back(tmp_path):
    steps = changes_needed(tmp_path)
    assert steps >= 6
    for step in range(steps):
        nvml = replay(tmp_path, "a30_three_slices.json")
        journal = tmp_path / "j"
        dying = Dying(nvml, step, Cut(), then_dead=True)
        with (
            pytest.raises(Cut),
            temporary_slices(dying, 0, ["1g.6gb", "1g.6gb", "1g.6gb"], True, journal=journal),
        ):
            pass
        assert journal.is_file(), step
        said = restore_from_journal(nvml, journal)
        assert said is not None and "1g.6gb:0, 1g.6gb:1, 2g.12gb:2" in said
        assert layout(nvml) == A30, step
        assert not journal.exists()


def test_a_change_that_the_driver_refuses_once_is_undone(tmp_path):
    for step in range(changes_needed(tmp_path) // 2):
        nvml = replay(tmp_path, "a30_three_slices.json")
        dying = Dying(nvml, step, NvmlFault("in_use", "In use by another client"), then_dead=False)
        with (
            pytest.raises(InputFault, match="In use by another client"),
            temporary_slices(dying, 0, ["1g.6gb", "1g.6gb", "1g.6gb"], True, journal=tmp_path / "j"),
        ):
            raise AssertionError("the measurement must not start")
        assert layout(nvml) == A30 and not (tmp_path / "j").exists()


def test_what_cannot_be_restored_is_named_with_the_commands_that_mend_it(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json")
    journal = tmp_path / "j"
    with pytest.raises(InputFault) as caught, temporary_slices(nvml, 0, ["4g.24gb"], True, journal=journal):
        data = json.loads(nvml.path.read_text())
        number = data["gpus"][0]["instances"][0]["id"]
        data["gpus"][0]["processes"] = [{"pid": 77, "gpu_instance": number}]
        nvml.path.write_text(json.dumps(data))
    text = str(caught.value)
    assert "4g.24gb at 0 is still there" in text and "In use by another client" in text
    assert "nv-hostengine" in text and "nvidia-device-plugin" in text
    assert f"nvidia-smi mig -i 0 -dgi -gi {number}" in text
    assert "-cgi 2g.12gb:2,1g.6gb:0,1g.6gb:1 -C" in text and "untested on hardware" in text
    assert journal.is_file()
    data["gpus"][0]["processes"] = []
    nvml.path.write_text(json.dumps(data))
    assert restore_from_journal(nvml, journal) is not None
    assert layout(nvml) == A30 and restore_from_journal(nvml, journal) is None


def test_a_gpu_that_disappears_leaves_the_journal_and_says_what_it_had(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json")
    with (
        pytest.raises(InputFault, match=r"has to have 1g\.6gb:0, 1g\.6gb:1, 2g\.12gb:2"),
        temporary_slices(nvml, 0, ["4g.24gb"], True, journal=tmp_path / "j"),
    ):
        data = json.loads(nvml.path.read_text())
        data["gpus"][0]["lost"] = True
        nvml.path.write_text(json.dumps(data))
    assert (tmp_path / "j").is_file()


def test_a_strangers_instance_is_never_removed(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json")
    journal = tmp_path / "j"
    with (
        pytest.raises(Cut),
        temporary_slices(Dying(nvml, 2, Cut(), then_dead=True), 0, ["4g.24gb"], True, journal=journal),
    ):
        pass
    # Someone cuts the GPU anew before the restart: one of theirs stands where a former one was.
    data = json.loads(nvml.path.read_text())
    theirs = {"id": 9, "profile": "2g.12gb", "start": 0, "compute_instance": 0, "uuid": "MIG-theirs"}
    data["gpus"][0]["instances"] = [theirs]
    nvml.path.write_text(json.dumps(data))
    with pytest.raises(InputFault, match="is missing"):
        restore_from_journal(nvml, journal)
    assert ("2g.12gb", 0, True) in layout(nvml) and journal.is_file()


def test_a_process_killed_in_the_middle_is_made_good_at_the_next_start(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json")
    journal = tmp_path / "j"
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from torchsplit_core.hardware import open_nvml, temporary_slices\n"
        "with open_nvml() as nvml, "
        "temporary_slices(nvml, 0, ['4g.24gb'], True, journal=Path(sys.argv[1])) as devices:\n"
        "    print(devices[0].uuid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(journal)], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, REPLAY_VARIABLE: str(nvml.path)},
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("MIG-")
        assert layout(nvml) == [("4g.24gb", 0, True)]
        with (
            pytest.raises(InputFault, match="an earlier change of MIG instances is under way"),
            temporary_slices(nvml, 0, ["2g.12gb"], True, journal=journal),
        ):
            raise AssertionError("a second change must not start")
        assert restore_from_journal(nvml, journal) is None  # it lives, so nothing is to be undone
        assert layout(nvml) == [("4g.24gb", 0, True)]
        child.send_signal(signal.SIGKILL)
        assert child.wait(timeout=60) == -signal.SIGKILL
    finally:
        child.kill()
        child.communicate()
    assert layout(nvml) == [("4g.24gb", 0, True)]
    said = restore_from_journal(nvml, journal)
    assert said is not None and "cut off" in said
    assert layout(nvml) == A30 and not journal.exists()


def test_a_divided_instance_cannot_be_made_again_and_is_refused(tmp_path):
    from dataclasses import replace

    from torchsplit_core.hardware.nvml import ComputeInstanceListing

    nvml = replay(tmp_path, "a30_three_slices.json")

    class Divided(Dying):
        def gpu_instances(self, index: int) -> Any:
            first, *rest = self.inner.gpu_instances(index)
            return (replace(first, compute_instances=(ComputeInstanceListing(0, whole=False),)), *rest)

    divided = Divided(nvml, 0, Cut(), then_dead=True)
    with (
        pytest.raises(InputFault, match="divided into compute instances"),
        temporary_slices(divided, 0, ["4g.24gb"], True, journal=tmp_path / "j"),
    ):
        raise AssertionError("the measurement must not start")
    assert layout(nvml) == A30


def test_a_journal_that_is_none_says_so(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json")
    journal = tmp_path / "j"
    for text in ("{", "[]", '{"format": "other", "version": 1}'):
        journal.write_text(text)
        with pytest.raises(InputFault, match=r"torchsplit\.mig_journal"):
            restore_from_journal(nvml, journal)


def test_a_journal_that_cannot_be_written_stops_before_any_change(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json")
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputFault, match="Nothing was changed"),
        temporary_slices(nvml, 0, ["4g.24gb"], True, journal=tmp_path / "file" / "j"),
    ):
        raise AssertionError("the measurement must not start")
    assert layout(nvml) == A30


@pytest.mark.parametrize("content", [b"", b"[]", b"{\xf8", b"[" * 100_000, b'{"format": "x", "version": 1}'])
def test_a_journal_that_is_none_is_one_message(content, tmp_path):
    journal = tmp_path / "j"
    journal.write_bytes(content)
    with pytest.raises(InputFault, match="is not a readable"), take_journal(journal):
        pass
    assert journal.read_bytes() == content
