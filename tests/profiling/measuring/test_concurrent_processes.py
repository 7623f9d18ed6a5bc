"""Several processes at once: whose runs count, what is added, and what a process that fails or dies costs."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.profiling.measured_models import ENDS_AT_3, FAILS_AT_3, NO_MEMORY_AT_7, PRINTS, written
from torchsplit_core.hardware import choose_devices
from torchsplit_core.profiling import MeasurementSettings, measure
from torchsplit_core.profiling.measured_model import MeasuredModel
from torchsplit_core.profiling.measuring.concurrent_processes import overlapping_runs, total_rates
from torchsplit_core.profiling.measuring.measurement import check_settings
from torchsplit_core.profiling.measuring.run_statistics import summarise
from torchsplit_core.values import InputFault

pytestmark = pytest.mark.torch

(CPU,) = choose_devices("cpu")


def crowd(folder: Path, body: str, sizes: tuple[int, ...], **options: Any) -> MeasuredModel:
    source, graph = written(folder, body)
    return measure(
        source, graph, CPU, batch_sizes=sizes, trust=True, settings=MeasurementSettings(point_budget_s=0.05),
        processes=2,
        exporter="tests.support.profiling.export:exporter",
        describer="torchsplit_core.tracing.export:describe_program", **options,
    )  # fmt: skip


def test_runs_count_where_all_processes_are_at_work():
    early = [(0.0, 1.0, 10.0), (1.0, 2.0, 11.0), (2.0, 3.0, 12.0)]
    late = [(0.5, 2.5, 20.0), (2.5, 4.0, 21.0)]
    # From 0.5, when the second begins, to 3.0, when the first is done.
    assert overlapping_runs([early, late]) == ((11.0, 12.0), (20.0,))


def test_a_process_without_a_shared_run_gives_all_of_its_own():
    assert overlapping_runs([[(0.0, 9.0, 9.0)], [(1.0, 2.0, 1.0), (2.0, 3.0, 1.5)]]) == ((9.0,), (1.0, 1.5))


def test_throughputs_and_the_ends_of_their_intervals_are_added():
    found = total_rates(4, [summarise([[10.0] * 9]), summarise([[20.0] * 9])])
    assert (found.rps, found.low_rps, found.high_rps) == (600.0, 600.0, 600.0)
    spread = total_rates(1, [summarise([[8.0, 10.0, 12.0]]), summarise([[10.0] * 9])])
    assert spread.low_rps < spread.rps == 200.0 < spread.high_rps


@pytest.mark.repeated
def test_two_processes_give_rows_of_two(tmp_path):
    crowded = crowd(tmp_path, PRINTS, (1, 2))
    assert [(row.batch_size, row.processes, row.basis) for row in crowded.rows] == [
        (1, 2, "measured"),
        (2, 2, "measured"),
    ]
    for row in crowded.rows:
        assert row.low_rps is not None and row.high_rps is not None and row.percentiles_ms is not None
        assert 0 < row.low_rps <= row.throughput_rps <= row.high_rps
        assert row.percentiles_ms.runs >= 2 and row.latency_ms == row.percentiles_ms.p95.value
        assert row.memory_parts_gib is not None and row.memory_parts_gib.basis == "measured"
    assert crowded.nodes == () and crowded.failures == ()
    # But for notes of a busy host, on which these tests run as well.
    assert [note for note in crowded.notes if " is unsteady" not in note] == []


@pytest.mark.repeated
def test_what_is_known_of_two_processes_is_taken_over(tmp_path):
    kept = []
    crowded = crowd(tmp_path, PRINTS, (1, 2), keep=kept.append)
    # As a store has them: the last of each, which says what a process holds.
    known = list({point.batch_size: point for point in kept}.values())
    again = crowd(tmp_path, "raise ValueError('measured anew')", (1, 2), known=known)
    assert again.rows == crowded.rows and again.environment["taken_over"] == [1, 2]


@pytest.mark.repeated
def test_a_batch_that_fails_or_does_not_fit_costs_itself_and_what_is_larger(tmp_path):
    crowded = crowd(tmp_path, f"{FAILS_AT_3}\n{NO_MEMORY_AT_7}", (1, 3, 4, 7, 8))
    assert [row.batch_size for row in crowded.rows] == [1, 4]
    assert [(item.batch_size, item.processes, item.reason) for item in crowded.failures] == [
        (3, 2, "failed"), (7, 2, "out_of_memory"), (8, 2, "out_of_memory"),
    ]  # fmt: skip
    assert "three is too many" in crowded.failures[0].message
    assert crowded.notes[0].startswith("2 processes, batch 3: ")


@pytest.mark.repeated
def test_a_process_that_dies_ends_the_rest_and_no_figure_is_no_fault(tmp_path):
    crowded = crowd(tmp_path, ENDS_AT_3, (3, 4))
    assert crowded.rows == ()
    assert [(item.batch_size, item.reason) for item in crowded.failures] == [(3, "crashed"), (4, "crashed")]
    assert "ended without an answer" in crowded.failures[0].message


@pytest.mark.parametrize("processes", [(0,), (1, -2), (17,), (1, True), (1.5,)])
def test_numbers_of_processes_that_are_none_are_refused(processes):
    with pytest.raises(InputFault, match="processes"):
        check_settings(MeasurementSettings(processes=processes), CPU)


def test_graphs_and_copies_are_measured_one_process_at_a_time():
    from dataclasses import replace

    gpu = replace(CPU, kind="cuda", id="cuda:0")
    for settings in (
        MeasurementSettings(processes=(2,), cuda_graphs=True),
        MeasurementSettings(processes=(1, 2), host_copies=True),
    ):
        with pytest.raises(InputFault, match="which one process alone can be measured with"):
            check_settings(settings, gpu)
    check_settings(MeasurementSettings(cuda_graphs=True, host_copies=True), gpu)
