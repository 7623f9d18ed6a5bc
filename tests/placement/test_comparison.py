"""Three solvers side by side."""

import json
from dataclasses import replace

import pytest

from tests.support.placement.decode_oracle import best_of
from tests.support.placement.requests import random_decode, tiny
from torchsplit_core import workflow
from torchsplit_core.cli.command import main
from torchsplit_core.files import write_file
from torchsplit_core.placement.comparison import COUNTS, as_counts_request, compare


def test_a_solver_of_counts_promises_what_its_gpus_do_not_give():
    """Of four alike GPUs two are well linked: the mean hides that the others are not."""
    gpus = tuple(replace(tiny().gpus[0], id=number, memory_gib=3.5) for number in range(4))
    links = [[0.0001 for _ in range(4)] for _ in range(4)]
    links[0][3] = links[3][0] = 500.0
    request = tiny(1, gpus=gpus, bandwidth_gib_per_s=tuple(map(tuple, links)))
    alone, counts = compare(request)
    assert counts.label == COUNTS and counts.outcome.throughput is not None
    assert counts.delivered is not None and counts.delivered < 0.1 * counts.outcome.throughput
    assert alone.delivered == alone.outcome.throughput and alone.delivered > counts.delivered


def test_counts_know_the_mean_between_types_and_one_type_a_segment():
    request = tiny(2)
    seen = as_counts_request(request)
    assert seen.same_type_segments and seen.bandwidth_gib_per_s == request.bandwidth_gib_per_s
    uneven = replace(
        request, bandwidth_gib_per_s=((0.0, 400.0, 100.0, 300.0), *request.bandwidth_gib_per_s[1:])
    )
    assert as_counts_request(uneven).bandwidth_gib_per_s[0][2:] == (200.0, 200.0)


def test_every_division_of_a_decode_stands_beside_the_others():
    request = replace(random_decode(3, "equal"), max_gpus_per_segment=2, same_type_segments=False)
    found = {one.label: one for one in compare(request)}
    assert [label.rpartition(", ")[2] for label in found] == [
        "one GPU", COUNTS, "equal parts", "in proportion", "layers cut",
    ]  # fmt: skip
    for label, split in (("equal parts", "equal"), ("layers cut", "tensor")):
        outcome = found[f"particular GPUs, up to 2, {label}"].outcome
        assert (outcome.throughput or 0.0) == pytest.approx(best_of(replace(request, split=split)))


def test_the_command_tells_them_and_the_size_of_the_program(tmp_path, capsys):
    write_file(tiny(2), tmp_path / "request.json")
    assert main(["place", str(tmp_path / "request.json"), "--compare", "-o", str(tmp_path / "out.json")]) == 0
    told = capsys.readouterr().err
    assert "counts of GPUs only" in told and "100 allocations, 420 connections and 1,041 variables" in told
    (segment,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["segments"]
    assert (segment["gpu_types"], segment["num_gpus"], segment["workload_per_gpu"]) == ({"A100": 2}, 2, 8.0)
    assert "100 allocations" in workflow.literal_size(tiny(2))
