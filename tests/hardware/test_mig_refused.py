"""Slices that are refused before anything changes, and the commands shown instead. All on replays."""

from typing import Any

import pytest

from tests.support.hardware.listings import A30_LAYOUT as A30
from tests.support.hardware.listings import layout, replay
from torchsplit_core.hardware import slice_commands, temporary_slices
from torchsplit_core.hardware.discovery import read_gpu
from torchsplit_core.values import InputFault


def off(data: dict[str, Any]) -> None:
    data["gpus"][0].update(mig="off", instances=[])


def no_rights(data: dict[str, Any]) -> None:
    data["permission"] = False


def busy(data: dict[str, Any]) -> None:
    data["gpus"][0]["processes"] = [{"pid": 4711, "gpu_instance": 3}]


def lost(data: dict[str, Any]) -> None:
    data["gpus"][0]["lost"] = True


@pytest.mark.parametrize(("change", "said"), [
    (off, "MIG mode is off"),
    (no_rights, "Insufficient Permissions"),
    (busy, "4711"),
    (lost, "GPU is lost"),
])  # fmt: skip
def test_refused_before_anything_changes(change, said, tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json", change)
    before = nvml.path.read_bytes()
    with (
        pytest.raises(InputFault, match=said),
        temporary_slices(nvml, 0, ["4g.24gb"], True, journal=tmp_path / "j"),
    ):
        raise AssertionError("the measurement must not start")
    assert nvml.path.read_bytes() == before and not (tmp_path / "j").exists()


def test_refused_without_consent_with_the_commands(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json")
    before = nvml.path.read_bytes()
    with (
        pytest.raises(InputFault, match="consent") as caught,
        temporary_slices(nvml, 0, ["4g.24gb"], False, journal=tmp_path / "j"),
    ):
        raise AssertionError("the measurement must not start")
    assert "-cgi 4g.24gb:0 -C" in str(caught.value) and "untested on hardware" in str(caught.value)
    assert nvml.path.read_bytes() == before


@pytest.mark.parametrize("profiles", [[], ["4g.24gb", "1g.6gb"], ["3g.40gb"]])
def test_slices_that_do_not_fit_are_refused(profiles, tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json")
    with (
        pytest.raises(InputFault, match="A30-24GB"),
        temporary_slices(nvml, 0, profiles, True, journal=tmp_path / "j"),
    ):
        raise AssertionError("the measurement must not start")
    assert layout(nvml) == A30


def test_commands_enable_create_remove_and_disable(tmp_path):
    nvml = replay(tmp_path, "a100_40gb_whole_and_empty.json")
    lines = slice_commands(read_gpu(nvml, 0), ["1g.5gb", "3g.20gb"])
    assert lines[0].startswith("#") and "Untested on hardware" in lines[0]
    assert [line.split("#")[0].strip() for line in lines[1:]] == [
        "sudo nvidia-smi -i 0 -mig 1", "sudo nvidia-smi mig -i 0 -cgi 3g.20gb:0,1g.5gb:4 -C", "nvidia-smi -L",
        "sudo nvidia-smi mig -i 0 -dci", "sudo nvidia-smi mig -i 0 -dgi", "sudo nvidia-smi -i 0 -mig 0",
    ]  # fmt: skip
    enabled = slice_commands(read_gpu(nvml, 1), ["7g.40gb"])
    assert not any("-mig" in line for line in enabled) and "-i 1 -cgi 7g.40gb:0 -C" in " ".join(enabled)


def test_commands_put_former_instances_back(tmp_path):
    lines = slice_commands(read_gpu(replay(tmp_path, "a30_three_slices.json"), 0), ["4g.24gb"])
    text = "\n".join(lines)
    assert text.index("-lgi") < text.index("-dci") < text.index("-dgi") < text.index("-cgi 4g.24gb:0 -C")
    assert lines[-1] == "sudo nvidia-smi mig -i 0 -cgi 2g.12gb,1g.6gb,1g.6gb -C"


def test_commands_for_a_gpu_without_mig_are_refused(tmp_path):
    with pytest.raises(InputFault, match="T4 is not in the catalogue"):
        slice_commands(read_gpu(replay(tmp_path, "t4_without_mig.json"), 0), ["1g.5gb"])
