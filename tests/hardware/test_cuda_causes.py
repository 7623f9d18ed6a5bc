"""Why CUDA does not work, told apart by plain facts, and the facts as the machine has them."""

from dataclasses import replace

import pytest

from tests.support.hardware.driver_library import install
from tests.support.hardware.listings import replay
from torchsplit_core.hardware import choose_devices, discover_host
from torchsplit_core.hardware.cuda_causes import CudaFacts, cause_of, cuda_facts, cuda_fault, is_stale

WORKS = CudaFacts(
    built_for="13.0", driver_words=None, driver_cuda="13.0", listed=("GPU-1", "MIG-a", "MIG-b"),
    visible="MIG-a", nodes=frozenset({"nvidia-cap1", "nvidia-cap2", "nvidia-cap21", "nvidia-cap22"}),
    needed=frozenset({"nvidia-cap21", "nvidia-cap22"}),
)  # fmt: skip


@pytest.mark.parametrize(("changed", "cause", "said"), [
    ({"built_for": None}, "cpu_build", "this build of torch has no CUDA"),
    ({"built_for": None, "driver_words": "not found"}, "cpu_build", "no driver either (not found)"),
    ({"driver_words": "library not found"}, "no_driver", "library not found"),
    ({"listed": ()}, "no_gpu", "the driver lists no GPU"),
    ({"visible": "MIG-gone"}, "stale_uuid", "names 'MIG-gone', which no device here"),
    ({"visible": "GPU-gone,GPU-1"}, "stale_uuid", "names 'GPU-gone', which no device here"),
    ({"nodes": frozenset({"nvidia-cap1", "nvidia-cap21"})}, "no_capability", "lacks nvidia-cap22"),
    ({"nodes": (), "needed": ()}, "no_capability", "lacks its nodes"),
    # A container lists no instance whose nodes it has not got.
    ({"nodes": (), "needed": (), "visible": "MIG-gone"}, "no_capability", "Container Toolkit"),
    ({"driver_cuda": "12.8"}, "old_driver", "runs only up to 12.8"),
    ({"driver_cuda": "13.1"}, "unknown", "CUDA still refuses"),
    ({"driver_cuda": "n/a"}, "unknown", "CUDA still refuses"),
    ({"visible": None, "nodes": ()}, "unknown", "CUDA still refuses"),
    ({"visible": "0", "nodes": ()}, "unknown", "CUDA still refuses"),
])  # fmt: skip
def test_every_cause_is_told_in_its_own_words(changed, cause, said):
    facts = replace(WORKS, **changed)  # type: ignore[arg-type]
    assert cause_of(facts) == cause
    fault = cuda_fault(facts, "mig:MIG-a")
    assert said in str(fault) and str(fault).startswith("device: 'mig:MIG-a' cannot be used: ")


def test_the_beginning_of_a_uuid_is_enough_and_an_index_is_never_stale():
    assert not is_stale("MIG-", ("MIG-a",)) and is_stale("MIG-b", ("MIG-a",))
    assert not is_stale("7", ()) and not is_stale("", ()) and not is_stale(None, ())


def test_the_facts_of_an_instance_are_its_uuid_and_nodes(tmp_path, monkeypatch):
    listing = replay(tmp_path, "a100_40gb_two_halves.json")
    device = choose_devices("mig", discover_host(listing))[0]
    install(monkeypatch, listing)
    number = listing.mig_devices(0)[0].gpu_instance_id
    home = tmp_path / "capabilities" / "gpu0" / "mig" / f"gi{number}"
    (home / "ci0").mkdir(parents=True)
    (home / "access").write_text("DeviceFileMinor: 21\nDeviceFileMode: 444\n")
    (home / "ci0" / "access").write_text("DeviceFileMinor: 22\n")
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "nvidia-cap21").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(device.uuid))
    cuda = cuda_facts("12.8", {"uuid": device.uuid}, tmp_path / "nodes", tmp_path / "capabilities")
    assert cuda.driver_words is None and device.uuid in cuda.listed and cuda.driver_cuda == "12.8"
    assert cuda.nodes == {"nvidia-cap21"} and cuda.needed == {"nvidia-cap21", "nvidia-cap22"}
    assert cause_of(cuda) == "no_capability"


def test_without_a_driver_the_facts_have_its_words(tmp_path, monkeypatch):
    import pynvml

    def fail():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    cuda = cuda_facts("12.8", {"uuid": "GPU-1"}, tmp_path / "no", tmp_path / "no")
    assert cuda.driver_words is not None and cause_of(cuda) == "no_driver"


def test_a_stale_variable_is_told_where_a_device_is_chosen(tmp_path, monkeypatch):
    host = discover_host(replay(tmp_path, "a100_40gb_two_halves.json"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-00000000-0000-0000-0000-000000000000")
    with pytest.raises(ValueError, match="names nothing that is here: an instance that is made anew"):
        choose_devices("mig", host)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match="hides the others"):
        choose_devices("mig", host)
