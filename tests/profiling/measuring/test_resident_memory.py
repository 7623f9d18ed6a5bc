"""What a process that serves a model holds: counted beside its tensors, kept with the point, told where it is not."""

from pathlib import Path

import pytest

from tests.support.profiling.measured_models import written
from torchsplit_core.hardware import choose_devices
from torchsplit_core.profiling import MeasuredPoint, MeasurementSettings, measure
from torchsplit_core.profiling.measured_model import MeasuredModel
from torchsplit_core.values.units import GIB

pytestmark = pytest.mark.torch

(CPU,) = choose_devices("cpu")
KEEPS = "if not LEAKED: LEAKED.append(bytes(range(256)) * 2**20)"
"""A quarter of a GiB that is no tensor's."""


def held(folder: Path, body: str, **options: object) -> MeasuredModel:
    source, graph = written(folder, body)
    return measure(
        source, graph, CPU, batch_sizes=(1, 2), trust=True, settings=MeasurementSettings(point_budget_s=0.02),
        exporter="tests.support.profiling.export:exporter",
        describer="torchsplit_core.tracing.export:describe_program", **options,  # type: ignore[arg-type]
    )  # fmt: skip


def test_what_no_tensor_holds_counts_and_is_kept_with_its_point(tmp_path):
    kept = []
    found = held(tmp_path, KEEPS, keep=kept.append)
    for row in found.rows:
        parts = row.memory_parts_gib
        assert parts is not None and parts.basis == "measured" and row.memory_gib is not None
        assert parts.context > 0.25 > parts.weights + parts.activations + parts.transient
        content = next(p.content for p in reversed(kept) if p.batch_size == row.batch_size)
        assert row.memory_gib == pytest.approx(content["held_bytes"] / GIB)
    known = list({(point.kind, point.batch_size): point for point in kept}.values())
    again = held(tmp_path, "raise ValueError('run anew')", known=known)
    assert again.rows == found.rows


def test_points_without_it_get_it_when_the_model_is_measured_next(tmp_path):
    kept = []
    found = held(tmp_path, KEEPS, keep=kept.append)
    older = [
        MeasuredPoint.from_message(
            p.architecture_hash, p.kind, {k: v for k, v in p.content.items() if k != "held_bytes"}
        )
        for p in kept
    ]
    again = held(tmp_path, KEEPS, known=list({(p.kind, p.batch_size): p for p in older}.values()))
    assert [row.throughput_rps for row in again.rows] == [row.throughput_rps for row in found.rows]
    assert all((row.memory_gib or 0) > 0.25 for row in again.rows)


def test_a_process_that_cannot_be_looked_at_leaves_the_tensors_and_a_note(tmp_path):
    kept = []
    held(tmp_path, "", keep=kept.append)
    known = [
        MeasuredPoint.from_message(
            p.architecture_hash, p.kind, {k: v for k, v in p.content.items() if k != "held_bytes"}
        )
        for p in kept
    ]
    again = held(tmp_path, "os._exit(1)", known=list({(p.kind, p.batch_size): p for p in known}.values()))
    for row in again.rows:
        parts = row.memory_parts_gib
        assert parts is not None and parts.context == 0 and (row.memory_gib or 0) < 0.01
    assert any("What a process holds was not measured" in note for note in again.notes)
