"""The shipped measurements become profiles and plan requests without losing or inventing anything."""

import subprocess
import sys

import pytest

from torchsplit_core.hardware import gpu_type
from torchsplit_core.profiling.library import (
    library_profile,
    library_profiles,
    measured_library,
    mix_request,
    serving_mixes,
)
from torchsplit_core.values import InputFault


def test_every_measurement_is_read():
    rows = measured_library()
    assert len(rows) == 1747
    assert rows[0].model == "bert" and rows[0].throughput_rps == 74.408 and rows[0].latency_ms == 13.0
    assert all(row.throughput_rps > 0 and row.latency_ms > 0 for row in rows)


def test_profiles_keep_slice_and_processes_and_invent_no_interval():
    profiles = library_profiles()
    assert len(profiles) == 11
    assert sum(len(profile.rows) for profile in profiles) == 1747
    for profile in profiles:
        keys = {(row.profile, row.batch_size, row.processes) for row in profile.rows}
        assert len(keys) == len(profile.rows)
        assert all(row.low_rps is None and row.high_rps is None for row in profile.rows)
    whole = [
        row for row in library_profile("resnet50").rows if row.profile == "7g.80gb" and row.processes == 1
    ]
    assert {row.batch_size: row.throughput_rps for row in whole}[256] == 2582.226


def test_memory_is_estimated_and_what_ran_fits():
    for profile in library_profiles():
        for row in profile.rows:
            assert row.memory_gib is not None and row.memory_parts_gib is not None and row.profile is not None
            size = gpu_type("A100-80GB").profile(row.profile).memory_gib
            assert size is not None and 0 < row.memory_gib <= size + 1e-9
            assert row.memory_parts_gib.basis == "estimated"
    by_batch = {
        row.batch_size: row.memory_gib
        for row in library_profile("vgg19").rows
        if (row.profile, row.processes) == ("7g.80gb", 1)
    }
    # 574,668,960 bytes of weights, half a GiB of context, 39,284,736 bytes for one image.
    assert by_batch[1] == pytest.approx((574_668_960 + 39_284_736) / 2**30 + 0.5)
    assert list(by_batch.values()) == sorted(by_batch.values())


def test_unknown_library_model_names_the_known_ones():
    with pytest.raises(InputFault, match="resnet50"):
        library_profile("alexnet")


def test_s3_request_follows_the_published_rules():
    request = mix_request("S3")
    assert [(entry.type, entry.count) for entry in request.gpus] == [("A100-80GB", 5)]
    assert len(request.models) == 11
    bert = next(model for model in request.models if model.name == "bert")
    assert bert.demand_rps == 46.0
    assert bert.min_throughput_rps is None
    assert bert.max_latency_ms == pytest.approx(0.45 * 4294.0)
    points = bert.variants[0].stages[0].points
    assert {point.processes for point in points} == {1, 2, 3}
    expected = sum(1 for row in measured_library() if row.model == "bert" and row.processes <= 3)
    assert len(points) == expected


def test_min_gpus_makes_the_rates_binding():
    request = mix_request("S1", gpus=4, objective="min_gpus")
    assert request.gpus[0].count == 4
    assert request.objective.kind == "min_gpus"
    assert [model.min_throughput_rps for model in request.models] == [19.0, 353.0, 460.0, 677.0, 829.0, 354.0]
    assert {mix.name: mix.published_gpus for mix in serving_mixes()} == {"S1": 2, "S3": 5}


@pytest.mark.parametrize(("name", "gpus"), [("S9", None), ("S1", 0)])
def test_unknown_mix_and_empty_fleet_are_refused(name, gpus):
    with pytest.raises(InputFault):
        mix_request(name, gpus)


def test_library_loads_without_torch():
    code = "import sys, torchsplit_core.profiling.library; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
