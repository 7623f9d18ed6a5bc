"""The measuring child's device: what it opens, what it refuses, and the count of SMs read back."""

import ctypes
import os
import threading
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchsplit_core.hardware import choose_devices
from torchsplit_core.profiling.measuring import accelerator
from torchsplit_core.profiling.measuring.accelerator import open_device, sms_of_context
from torchsplit_core.values import Device, InputFault

(CPU,) = choose_devices("cpu")
SMS = Device("sm", "sm:16", "16 SMs of an H100", "H100-SXM5-80GB", "1g.10gb", "GPU-1", 0, "GPU-1", 16, 9.75)


class Driver:
    """Stands for libcuda: a context that has a number of SMs."""

    def __init__(self, count: int, fault: int = 0) -> None:
        self.count, self.fault = count, fault

    def cuCtxGetCurrent(self, context: Any) -> int:
        ctypes.cast(context, ctypes.POINTER(ctypes.c_void_p))[0] = 1234
        return 0

    def cuCtxGetDevResource(self, context: Any, resource: Any, kind: int) -> int:
        assert context.value == 1234 and kind == 1
        resource[96:100] = self.count.to_bytes(4, "little")
        return self.fault


def test_the_processor_needs_nothing():
    with open_device(asdict(CPU)) as opened:
        assert opened.torch_device == "cpu" and opened.facts["threads"] == torch.get_num_threads()


def test_a_gpu_that_torch_cannot_use_is_refused_with_the_way_out():
    with pytest.raises(InputFault, match="CUDA build of torch"), open_device(asdict(SMS)):
        raise AssertionError("opened")


@pytest.mark.parametrize(
    ("driver", "found"), [(Driver(18), 18), (Driver(18, fault=801), None), (Driver(0), None)]
)
def test_the_count_of_sms_is_read_back_or_unknown(driver, found):
    assert sms_of_context(driver) == found


def test_a_driver_without_the_call_is_unknown_and_no_fault():
    assert sms_of_context(SimpleNamespace(cuCtxGetCurrent=lambda context: 0)) is None


def test_sms_are_held_to_and_memory_capped_while_the_device_is_open(monkeypatch):
    """The calls to torch in their order, on a stand-in: no GPU is here."""
    from torch.cuda import green_contexts

    calls = []

    class Green:
        @staticmethod
        def create(**options):
            calls.append(("create", options))
            return Green()

        def set_context(self) -> None:
            calls.append("set")

        def pop_context(self) -> None:
            calls.append("pop")

    properties = SimpleNamespace(multi_processor_count=132, total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "an H100")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share: calls.append(share))
    monkeypatch.setattr(green_contexts, "SUPPORTED", True)
    monkeypatch.setattr(green_contexts, "GreenContext", Green)
    monkeypatch.setattr(accelerator, "sms_of_context", lambda: 18)
    with pytest.raises(ZeroDivisionError), open_device(asdict(SMS)) as opened:
        assert opened.torch_device == "cuda"
        # The driver gave more than was asked for: what it gave is what counts.
        assert opened.facts["sm_asked"] == 16 and opened.facts["sm_count"] == 18
        calls.append("measure")
        raise ZeroDivisionError
    cap = pytest.approx(9.75 / 80)
    assert calls == [("create", {"num_sms": 16, "device_id": 0}), cap, "set", "measure", "pop"]


def test_a_gpu_that_another_process_holds_alone_is_told_as_in_use(monkeypatch):
    def refuse():
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    with pytest.raises(InputFault, match=r"in use.*nvidia-smi -c 0.*DCGM"), open_device(asdict(SMS)):
        raise AssertionError("opened")


def test_another_fault_of_cuda_stays_what_it_is(monkeypatch):
    def fail():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    with pytest.raises(RuntimeError, match="illegal"), open_device(asdict(SMS)):
        raise AssertionError("opened")


def test_cores_hold_every_thread_and_are_given_back():
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    (device,) = choose_devices("cpu:1c")
    try:
        with open_device(asdict(device)) as opened:
            first = min(before)
            assert opened.torch_device == "cpu"
            assert opened.facts == {"threads": 1, "cores": str(first)}
            assert torch.get_num_threads() == 1
            assert os.sched_getaffinity(0) == {first} == os.sched_getaffinity(other.native_id or 0)
    finally:
        stop.set()
        other.join()
    assert os.sched_getaffinity(0) == before and torch.get_num_threads() == threads


def test_more_cores_than_the_process_may_run_on_are_refused():
    (device,) = choose_devices("cpu:1c")
    many = replace(device, id="cpu:9999c", profile="9999c")
    with pytest.raises(InputFault, match="of which this process may use"), open_device(asdict(many)):
        raise AssertionError("opened")
