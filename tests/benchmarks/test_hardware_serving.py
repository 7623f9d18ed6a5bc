"""The steps of `make hardware` that run plans, on cores: the same calls, and how their figures are judged."""

import math
import struct

import pytest

# The benchmarks are scripts of the repository, no installed package.
from benchmarks import hardware_serving as steps
from benchmarks.hardware_serving import CASES, WHOLE, Ground, Measured, cores_ground, furthest, request_of
from tests.support.hardware.listings import DATA
from torchsplit_core import workflow
from torchsplit_core.serving.device_binding import bind_slices
from torchsplit_core.serving.protocol.client import RawTensor
from torchsplit_core.values import InputFault, PartitionOutcome, Profile, ProfileRow
from torchsplit_core.values.serving.measurement import MeasuredModel, MeasuredTimes, Measurement


def tensor(*numbers: float, shape: tuple[int, ...] | None = None) -> RawTensor:
    return RawTensor("y", "FP32", shape or (len(numbers),), struct.pack(f"<{len(numbers)}f", *numbers))


def test_answers_are_compared_by_their_largest_number():
    assert furthest([tensor(1.0, -4.0)], [tensor(1.0, -4.0)]) == 0.0
    assert furthest([tensor(1.0, -4.0)], [tensor(1.2, -4.0)]) == pytest.approx(0.05)
    assert furthest([tensor(1.0, 2.0)], [tensor(1.0, 2.0, shape=(2, 1))]) == math.inf
    assert furthest([tensor(1.0)], [tensor(math.nan)]) == math.inf and furthest([tensor(1.0)], []) == math.inf


def run(measured_rps: float, errors: int = 0) -> Measurement:
    times = MeasuredTimes(1.0, 2.0, 3.0)
    model = MeasuredModel("bert", 100.0, 100.0, measured_rps, times, times, 0.5, errors)
    return Measurement("", 5.0, 1.0, "", (model,))


def test_lost_requests_and_rates_not_reached_are_told():
    (case, *_) = CASES
    assert list(steps.served_faults(case, run(90.0))) == []
    (short,) = steps.served_faults(case, run(89.0))
    assert "had 89.0 of 100.0 requests/s" in short
    (lost,) = steps.served_faults(case, run(100.0, 2))
    assert "2 requests to bert got no result" in lost
    ((*_, simulated, replayed, measured, errors),) = steps.served_rows(case, run(90.0))
    assert (simulated, replayed, measured, errors) == ("2.00", "n/a", "2.00", "0")


def test_a_gpu_without_mig_profiles_says_so():
    for step in (steps.parts, steps.plans):
        told = []
        assert step(told.append, lambda: None) == () and told == [steps.NO_SLICES]


def test_a_step_without_time_begins_nothing(monkeypatch):
    monkeypatch.setattr(steps, "BEGIN_S", -1.0)
    monkeypatch.setattr(steps, "measured", lambda *asked: None)
    told = []
    assert steps.plans(told.append, cores_ground) == ()
    assert told[-1].count("no time was left") == len(CASES) == 4


def emulated(source: str, ground: Ground, memory_gib: float) -> Profile:
    """As measured on both slices by SMs."""
    rows = tuple(
        ProfileRow(
            "whole", ground.fleet.type, profile, 1, 1, 50.0, 20.0, 45.0, 55.0, memory_gib, "emulated",
            f"sm:{profile}",
        )
        for profile in (ground.half, ground.whole)
    )  # fmt: skip
    return Profile(source, "hash", {}, rows, ())


def test_slices_by_sms_are_found_on_a_whole_gpu(monkeypatch):
    """Of a replayed listing: nothing runs, but every case is planned and each slice has its SMs."""
    monkeypatch.setenv("TORCHSPLIT_NVML_REPLAY", str(DATA / "a100_40gb_whole_and_empty.json"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    ground = steps.sm_ground()
    assert ground is not None and (ground.half, ground.whole) == ("3g.20gb", "7g.40gb")
    profiles = tuple(emulated(source, ground, 2.0) for source in steps.SOURCES)
    for case, sms in ((WHOLE, [42, 42]), (CASES[1], [42, 42]), (CASES[2], [98])):
        request = request_of(ground, case, Measured(profiles, PartitionOutcome("infeasible", (), None, None)))
        places = bind_slices(workflow.plan(request), ground.stand_in)
        assert [place.device.kind for place in places] == ["sm"] * len(sms), case.name
        assert [place.device.sm_count for place in places] == sms, case.name
    monkeypatch.setenv("TORCHSPLIT_NVML_REPLAY", str(DATA / "t4_without_mig.json"))
    assert steps.sm_ground() is None


@pytest.mark.repeated
@pytest.mark.torch
@pytest.mark.slow
def test_the_steps_run_on_cores():
    """Parts answer as the model does; every case has the plan that it is named after; two models share a slice."""
    ground = cores_ground()
    told = []
    assert steps.parts(told.append, cores_ground, "sample:diamond") == ()
    assert "| cut in two, a slice each | 2 |" in told[-1]
    profile = steps.measured(ground, ("sample:diamond", "sample:bert"), (1,))
    made = {}
    for case in CASES:
        request = request_of(ground, case, profile)
        (gpu,) = workflow.plan(request).gpus
        made[case.name] = [[(tenant.model, tenant.stage) for tenant in item.tenants] for item in gpu.slices]
    assert [len(slices) for slices in made.values()] == [2, 2, 1, 2]
    ((first, second),) = made["two models share a slice"]
    assert {first[0], second[0]} == {"diamond", "bert"}
    assert len({stage for ((_, stage),) in made["cut in two, a slice each"]}) == 2
    case = next(one for one in CASES if one.shared)
    measurement = steps.run_case(ground, case, profile, 1.0)
    assert [row[1] for row in steps.served_rows(case, measurement)] == ["diamond", "bert"]
    assert not any(model.errors for model in measurement.models)
    with pytest.raises(InputFault):
        steps.run_case(ground, case, Measured((), profile.cut), 1.0)
