"""Several devices of one host, on replayed listings: rows, joins, made slices, what a GPU says of its state."""

import json
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.tracing.here import traced_here
from torchsplit_core import cli
from torchsplit_core.files import write_text
from torchsplit_core.graph import TorchGraph
from torchsplit_core.hardware import ClockStability
from torchsplit_core.profiling.measured_model import MeasuredModel
from torchsplit_core.profiling.merge import update_profile
from torchsplit_core.profiling.points import MeasuredPoint, MeasurementSettings
from torchsplit_core.telemetry import read_spans
from torchsplit_core.values import Device, InputFault, NodeProfile, Profile, ProfileFailure, ProfileRow
from torchsplit_core.values.plan.front import FrontCosts
from torchsplit_core.workflow.profiling import SlicesToMake, journal_of, profile
from torchsplit_core.workspace.store import Store

pytestmark = pytest.mark.torch

LISTINGS = ROOT / "tests" / "hardware" / "data"
Measure = Callable[..., MeasuredModel]


@cache
def diamond() -> TorchGraph:
    """Traced when a test first asks: every worker imports this file, one runs it."""
    return traced_here("sample:diamond")


def stand_in(calls: list[Device], rate: Callable[[Device], float] = lambda device: 100.0) -> Measure:
    """Measures nothing: a row of batch 1 at that rate for every device it is called with."""

    def measure(source, graph, device, **options):
        calls.append(device)
        row = ProfileRow(
            "whole", device.gpu_type, device.profile, 1, 1, rate(device), 10.0, rate(device) * 0.9,
            rate(device) * 1.1, 1.0, device.basis, device.id,
        )  # fmt: skip
        failure = ProfileFailure(
            "whole", device.gpu_type, device.profile, 64, 1, "out_of_memory", "Out of memory.", device.id
        )
        nodes = tuple(NodeProfile(node.id, 1 / len(diamond().ops), 1, 1, {2: 0.5}) for node in diamond().ops)
        environment = {
            "torch": "x", "python": "x", "platform": "x", "seed": 0, "eval_mode": True, "taken_over": [],
            "device_id": device.id,
        }  # fmt: skip
        return MeasuredModel(diamond(), (row,), nodes, (failure,), environment, ())

    return measure


@pytest.fixture
def replayed(tmp_path, monkeypatch) -> Callable[[str], Path]:
    """A function that makes this host the one of a listing; the listing's own copy, which changes are made in."""

    def replay(name):
        copy = tmp_path / name
        shutil.copy(LISTINGS / name, copy)
        monkeypatch.setenv("TORCHSPLIT_NVML_REPLAY", str(copy))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return copy

    return replay


def profiled(monkeypatch: pytest.MonkeyPatch, measure: Measure, **options: Any) -> Profile:
    monkeypatch.setattr("torchsplit_core.profiling.measuring.measurement.measure", measure)
    return profile("sample:diamond", graph=diamond(), gpu_types=["A100-40GB"], **options)[1]


def measured(found: Profile) -> list[tuple[str, str | None]]:
    return [(row.gpu_type, row.profile) for row in found.rows if row.basis != "estimated"]


def test_slices_and_processor_become_rows_of_one_profile(replayed, monkeypatch, tmp_path):
    replayed("a100_40gb_two_halves.json")
    calls = []
    profile = profiled(monkeypatch, stand_in(calls), device="cpu,mig", store=Store(tmp_path / "s"))
    assert measured(profile) == [("A100-40GB", "3g.20gb"), ("CPU", None)]
    devices = profile.environment["devices"]
    assert set(devices) == {"cpu", calls[[c.kind for c in calls].index("mig")].id}
    state = next(facts for name, facts in devices.items() if name.startswith("mig"))["state_before"]
    assert "1,410" in state and "54" in state
    # What is measured, and what does not fit, is not estimated as well.
    keys = [(row.gpu_type, row.profile, row.batch_size) for row in profile.rows]
    assert len(keys) == len(set(keys)) and ("A100-40GB", "3g.20gb", 64) not in keys
    # Nor is what a smaller slice could not hold either.
    assert ("A100-40GB", "1g.5gb", 64) not in keys and ("A100-40GB", "7g.40gb", 64) in keys


def test_two_slices_of_one_profile_become_the_slower_one_with_both_intervals(replayed, monkeypatch):
    listing = json.loads(replayed("a100_40gb_two_halves.json").read_text())
    first, second = [item["uuid"] for item in listing["gpus"][0]["instances"]]
    profile = profiled(
        monkeypatch,
        stand_in([], lambda device: 100.0 if device.uuid == first else 80.0),
        device=f"mig:{first},mig:{second}",
    )
    (row,) = [row for row in profile.rows if row.basis == "measured"]
    assert (row.throughput_rps, row.low_rps, row.high_rps) == (80.0, 72.0, pytest.approx(110.0))


def test_what_was_measured_stands_before_what_was_emulated(replayed, monkeypatch):
    replayed("a100_40gb_two_halves.json")
    cut = profiled(monkeypatch, stand_in([]), device="mig")
    (row,) = [row for row in cut.rows if row.basis == "measured"]
    emulated = replace(row, basis="emulated", throughput_rps=7.0, device="sm:42")
    other = replace(cut, rows=(emulated, *cut.rows[1:]))
    for older, newer in ((cut, other), (other, cut)):
        assert [item for item in update_profile(older, newer).rows if item.basis != "estimated"] == [row]


def test_slices_of_one_gpu_are_measured_one_after_the_other_unless_asked(replayed, monkeypatch, tmp_path):
    listing = json.loads(replayed("a100_40gb_two_halves.json").read_text())
    both = ",".join(f"mig:{item['uuid']}" for item in listing["gpus"][0]["instances"])
    lock, running, most = threading.Lock(), [0], [0]
    together = threading.Barrier(2)

    def counted(wait):
        inner = stand_in([])

        def measure(*arguments, **options):
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            if wait:
                together.wait(120)
            found = inner(*arguments, **options)
            with lock:
                running[0] -= 1
            return found

        return measure

    store = Store(tmp_path / "s")
    profiled(monkeypatch, counted(False), device=both, store=store)
    assert most[0] == 1
    found = profiled(monkeypatch, counted(True), device=both, store=store, at_once=True)
    assert most[0] == 2
    assert {facts["slices_measured_at_once"] for facts in found.environment["devices"].values()} == {2}


def test_a_device_that_fails_stops_the_others_at_their_next_news(replayed, monkeypatch, tmp_path):
    replayed("a100_40gb_two_halves.json")
    started, failed, ended = threading.Event(), threading.Event(), threading.Event()

    def measure(source, graph, device, *, progress, **options):
        if device.kind == "mig":
            assert started.wait(120)
            failed.set()
            raise InputFault("model", "x does not run here", "Mend it.")
        started.set()
        assert failed.wait(120)
        try:
            for _ in range(600):
                progress(0.5, "batch size 1")
                time.sleep(0.05)
        except KeyboardInterrupt:
            ended.set()
            raise
        raise AssertionError("was never stopped")

    with pytest.raises(InputFault, match="x does not run here"):
        profiled(monkeypatch, measure, device="cpu,mig", store=Store(tmp_path / "s"))
    assert ended.is_set()


def test_slices_are_made_measured_and_the_former_layout_restored(replayed, monkeypatch, tmp_path):
    listing = replayed("a100_40gb_two_halves.json")
    before = [(i["profile"], i["start"]) for i in json.loads(listing.read_text())["gpus"][0]["instances"]]
    calls = []
    store = Store(tmp_path / "s")
    wanted = SlicesToMake(0, ("1g.5gb", "7g.40gb"), consent=True)
    profile = profiled(monkeypatch, stand_in(calls), device="", store=store, make_slices=wanted)
    assert [device.profile for device in calls] == ["1g.5gb", "7g.40gb"]
    assert measured(profile) == [("A100-40GB", "1g.5gb"), ("A100-40GB", "7g.40gb")]
    after = [(i["profile"], i["start"]) for i in json.loads(listing.read_text())["gpus"][0]["instances"]]
    assert sorted(after) == sorted(before) and not journal_of(store).exists()


def test_a_measurement_that_fails_restores_the_layout_too(replayed, monkeypatch, tmp_path):
    listing = replayed("a100_40gb_two_halves.json")
    before = json.loads(listing.read_text())["gpus"][0]["instances"]

    def fails(*arguments, **options):
        raise InputFault("model", "x does not run", "Mend it.")

    with pytest.raises(InputFault, match="x does not run"):
        profiled(
            monkeypatch, fails, device="", store=Store(tmp_path / "s"),
            make_slices=SlicesToMake(0, ("7g.40gb",), True),
        )  # fmt: skip
    after = json.loads(listing.read_text())["gpus"][0]["instances"]
    assert sorted((i["profile"], i["start"]) for i in after) == sorted(
        (i["profile"], i["start"]) for i in before
    )


def test_nothing_is_made_without_consent(replayed, monkeypatch, tmp_path):
    listing = replayed("a100_40gb_two_halves.json")
    before = listing.read_bytes()
    with pytest.raises(InputFault, match="consent"):
        profiled(
            monkeypatch, stand_in([]), device="", store=Store(tmp_path / "s"),
            make_slices=SlicesToMake(0, ("7g.40gb",), False),
        )  # fmt: skip
    assert listing.read_bytes() == before


def test_the_command_asks_for_consent_and_for_a_torch_that_can_use_the_gpu(replayed, tmp_path, capsys):
    replayed("a100_40gb_two_halves.json")
    command = ["profile", "sample:diamond", "--gpu-types", "A100-40GB", "-o", str(tmp_path / "p.json")]
    assert cli.main([*command, "--make-slices", "7g.40gb@0"]) == 2
    assert "consent" in capsys.readouterr().err
    assert cli.main([*command, "--make-slices", "7g.40gb@x"]) == 2
    assert "PROFILE,PROFILE@GPU" in capsys.readouterr().err
    assert cli.main([*command, "--device", "mig"]) == 2
    assert "Install a CUDA build of torch" in capsys.readouterr().err
    assert cli.main([*command, "--device", "sm:3g.20gb"]) == 2
    assert "sm:3g.20gb" in capsys.readouterr().err


def test_measurements_become_spans_with_their_points(tmp_path, monkeypatch):
    from torchsplit_core import telemetry

    monkeypatch.setenv("TORCHSPLIT_TELEMETRY", "file")
    monkeypatch.setenv("TORCHSPLIT_TELEMETRY_FOLDER", str(tmp_path / "spans"))
    try:
        options = (
            "--device", "cpu", "--batch-sizes", "1,2", "--point-budget", "0.05", "--again", "--name", "gem",
        )  # fmt: skip
        assert cli.main(["profile", "sample:diamond", *options, "-o", str(tmp_path / "p.json")]) == 0
    finally:
        telemetry.shutdown()
    assert json.loads((tmp_path / "p.json").read_text())["name"] == "gem"
    spans = [record for file in (tmp_path / "spans").rglob("*.json*") for record in read_spans(file)]
    names = sorted(record.name for record in spans)
    assert names.count("torchsplit.profile") == 1 and names.count("torchsplit.profile.point") == 2
    parent = next(record for record in spans if record.name == "torchsplit.profile")
    points = [record for record in spans if record.name == "torchsplit.profile.point"]
    assert {record.parent_id for record in points} == {parent.span_id}
    assert all(float(str(dict(record.attributes)["torchsplit.p50_ms"])) > 0 for record in points)


def test_a_profile_of_many_devices_is_a_contract_file(replayed, monkeypatch):
    replayed("a100_40gb_two_halves.json")
    profile = profiled(monkeypatch, stand_in([]), device="cpu,mig")
    assert '"failures"' in write_text(profile)


def test_numbers_of_processes_are_measured_one_after_the_other_and_kept_apart(monkeypatch, tmp_path):
    heard = []
    base = stand_in([])

    def measure(source, graph, device, **options):
        processes = options["processes"]
        heard.append((processes, options["known"]))
        found = base(source, graph, device)
        if processes == 3:
            raise InputFault("processes", "3 of them cannot build the model", "Measure fewer at once.")
        options["progress"](1.0, "done")
        content = {"batch_size": 1, "processes": processes}
        options["keep"](MeasuredPoint.from_message(found.graph.architecture_hash, "batch", content))
        rows = tuple(replace(row, processes=processes) for row in found.rows)
        return replace(found, rows=rows, notes=(f"{processes} told",))

    monkeypatch.setattr("torchsplit_core.profiling.measuring.measurement.measure", measure)
    settings, store = MeasurementSettings(processes=(2, 3, 2)), Store(tmp_path / "s")
    shares = []
    for _ in range(2):
        _, found = profile(
            "sample:diamond", graph=diamond(), device="cpu", settings=settings, store=store,
            gpu_types=("A30-24GB",), progress=lambda share, text: shares.append(share),
        )  # fmt: skip
    assert [row.processes for row in found.rows if row.basis == "measured"] == [1, 2]
    # One alone first, each number once; what one number kept is not another's.
    assert [count for count, _ in heard] == [1, 2, 3] * 2
    known = [[point.content["processes"] for point in points] for _, points in heard]
    assert known == [[], [], [], [1], [2], []]
    assert (
        "1 told 2 told 3 processes: processes: 3 of them cannot build the model" in found.environment["notes"]
    )
    first = shares[: len(shares) // 2]
    assert first == sorted(first) and first[-1] == 1.0


def test_cores_that_change_their_speed_are_told_of_a_slice_of_cores(monkeypatch):
    watched = []

    def watch(cores):
        watched.append(list(cores))
        return (ClockStability(1, 1.0, 1.0, 2.0, 2.0, 1.8),)

    def measure(source, graph, device, **options):
        found = stand_in([])(source, graph, device)
        cores = {"cores": "0,1"} if device.profile else {}
        return replace(found, environment={**found.environment, **cores})

    monkeypatch.setattr("torchsplit_core.workflow.profiling.measure_cores", watch)
    monkeypatch.setattr("torchsplit_core.profiling.measuring.measurement.measure", measure)
    notes = {}
    for device in ("cpu", "cpu:2c"):
        _, found = profile("sample:diamond", graph=diamond(), device=device, gpu_types=("A30-24GB",))
        notes[device] = found.environment["notes"]
    assert watched == [[0, 1]] and "change speed" not in notes["cpu"]
    assert "The cores of this host change speed by a factor of 1.8 by themselves (core 1;" in notes["cpu:2c"]


def test_the_front_is_measured_beside_slices_of_cores_and_what_it_costs_goes_with_them(monkeypatch, tmp_path):
    costs = FrontCosts(0.2, 0.4, cores=2, host="here")

    def front_costs(root, progress, since):
        progress(0.5, "measuring the front")
        return costs

    monkeypatch.setattr("torchsplit_core.serving.load_test.frontend_costs.front_costs", front_costs)
    monkeypatch.setattr("torchsplit_core.profiling.measuring.measurement.measure", stand_in([]))
    told = []
    options = {"graph": diamond(), "gpu_types": ("A30-24GB",), "store": Store(tmp_path)}
    _, found = profile(
        "sample:diamond", device="cpu,cpu:1c", progress=lambda share, text: told.append(text), **options
    )
    devices = found.environment["devices"]
    assert devices["cpu:1c"]["front"] == asdict(costs) and "front" not in devices["cpu"]
    assert any("measuring the front" in text for text in told)
    # 16 numbers of four bytes in, 16 out.
    assert found.environment["bytes_per_request"] == 128

    def fails(root, progress, since):
        raise InputFault("the front", "gave out", "Measure again.")

    monkeypatch.setattr("torchsplit_core.serving.load_test.frontend_costs.front_costs", fails)
    _, found = profile("sample:diamond", device="cpu:1c", **options)
    assert "front" not in found.environment["devices"]["cpu:1c"]
    assert "What the front of a served plan carries is not known: the front: gave out." in str(
        found.environment["notes"]
    )
