"""Points are kept under what they depend on, and nothing else ends up there."""

import hashlib
import json
import platform
import sqlite3
import threading
from dataclasses import asdict, replace
from importlib import metadata

import pytest

from torchsplit_core.hardware import choose_devices
from torchsplit_core.profiling import MeasuredPoint, MeasurementSettings
from torchsplit_core.profiling.points import REPEATS
from torchsplit_core.values import InputFault
from torchsplit_core.workspace.measured_points import (
    METHOD_VERSION,
    PointStore,
    exclusive_measurement,
    old_batch_sizes,
    place_of,
)
from torchsplit_core.workspace.store import Store

(CPU,) = choose_devices("cpu")


def point(identity: str, batch: int, p50: float = 1.0) -> MeasuredPoint:
    return MeasuredPoint(identity, "batch", batch, {"batch_size": batch, "latency": {"p50": {"value": p50}}})


def failure(identity: str, batch: int) -> MeasuredPoint:
    return MeasuredPoint(identity, "failure", batch, {"kind": "batch", "batch_size": batch, "message": "no"})


def test_points_come_back_for_their_model_and_place_alone(tmp_path):
    points = PointStore(Store(tmp_path), "here")
    points.save(point("a", 1))
    points.save(point("b", 2))
    PointStore(points.store, "elsewhere").save(point("a", 4))
    assert points.load("a") == (point("a", 1),)
    assert sorted(points.load(), key=lambda found: found.batch_size) == [point("a", 1), point("b", 2)]
    assert points.load("a")[0].stored_at is not None


def test_a_newer_point_replaces_and_a_figure_ends_a_failure(tmp_path):
    points = PointStore(Store(tmp_path), "here")
    points.save(failure("a", 8))
    points.save(failure("a", 16))
    points.save(point("a", 8, 1.0))
    points.save(point("a", 8, 2.0))
    assert points.load("a") == (point("a", 8, 2.0), failure("a", 16))


def test_points_from_before_a_moment_are_left_out(tmp_path):
    points = PointStore(Store(tmp_path), "here")
    points.save(point("a", 1))
    (old,) = points.load()
    assert old.stored_at is not None
    later = PointStore(points.store, "here", since=old.stored_at + 0.001)
    assert later.load() == ()
    later.save(replace(point("a", 2)))
    assert PointStore(points.store, "here", since=old.stored_at).load() != ()


def test_a_place_is_device_software_and_settings():
    places = {
        place_of(CPU, MeasurementSettings()),
        place_of(CPU, MeasurementSettings(cuda_graphs=True)),
        place_of(replace(CPU, profile="1g.10gb"), MeasurementSettings()),
        place_of(replace(CPU, uuid="MIG-1"), MeasurementSettings()),
    }
    for settings in (
        MeasurementSettings(dtype="bfloat16"),
        # The model's own dtype may be another.
        MeasurementSettings(dtype="float32"),
        MeasurementSettings(compile_mode="default"),
        MeasurementSettings(repeats=REPEATS + 1),
        MeasurementSettings(seed=1),
        MeasurementSettings(host_copies=True),
    ):
        places.add(place_of(CPU, settings))
    places.add(place_of(CPU, MeasurementSettings(dtype="float16", compile_mode="max-autotune")))
    assert len(places) == 11
    assert place_of(CPU, MeasurementSettings()) == place_of(
        CPU, MeasurementSettings(dtype="", compile_mode="", repeats=REPEATS, seed=0)
    )
    assert place_of(CPU, MeasurementSettings()) == place_of(
        CPU, MeasurementSettings(0.1, torch_trace="x", point_limit_s=9.0)
    )


def test_what_was_kept_before_there_were_dtypes_keeps_its_address():
    facts = asdict(CPU) | {
        "torch": metadata.version("torch"), "python": platform.python_version(), "kernel": platform.release(),
        "method": METHOD_VERSION, "cuda_graphs": False,
    }  # fmt: skip
    before = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    assert place_of(CPU, MeasurementSettings()) == before


def test_old_points_are_figures_under_the_former_hash(tmp_path):
    points = PointStore(Store(tmp_path), "here")
    for found in (point("former", 1), point("former", 4), failure("former", 8), point("now", 2)):
        points.save(found)
    assert old_batch_sizes(points, "former") == (1, 4)
    assert points.load("now") == (point("now", 2),)


def test_one_measurement_at_a_time_on_a_device_and_others_are_told(tmp_path):
    store = Store(tmp_path)
    order = []
    waiting, done = threading.Event(), threading.Event()

    def told(share, text):
        assert "queued" in text and CPU.name in text
        waiting.set()

    def second():
        with exclusive_measurement(store, CPU, told):
            order.append("second")
        done.set()

    with exclusive_measurement(store, CPU, told):
        threading.Thread(target=second).start()
        assert waiting.wait(120)
        with exclusive_measurement(store, replace(CPU, physical="GPU-1"), told):
            order.append("another device")
        order.append("first")
    assert done.wait(120)
    assert order == ["another device", "first", "second"]


def test_a_full_disk_is_one_clear_fault(tmp_path, monkeypatch):
    store = Store(tmp_path)
    points = PointStore(store, "here")
    points.save(point("a", 1))
    real = sqlite3.connect

    def small(*arguments, **options):
        database = real(*arguments, **options)  # type: ignore[call-overload]
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages}")
        return database

    monkeypatch.setattr("torchsplit_core.workspace.store.sqlite3.connect", small)
    with pytest.raises(InputFault, match="has no room left on its disk"):
        for batch in range(2, 2000):
            points.save(point("x" * 1000, batch))
    monkeypatch.undo()
    assert point("a", 1) in points.load()


def test_a_result_that_does_not_fit_on_the_disk_is_the_same_fault(tmp_path, monkeypatch):
    workspace = Store(tmp_path).create("w")
    workspace.put_bytes("upload", "a", b"before")

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torchsplit_core.workspace.blobs.os.fdopen", full)
    with pytest.raises(InputFault, match="has no room left on its disk"):
        workspace.put_bytes("upload", "a", b"after")
    monkeypatch.undo()
    assert workspace.get_bytes("upload", "a") == b"before"
