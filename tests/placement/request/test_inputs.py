"""What makes no sense is refused with its place, the value, the rule and what to do."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.placement.requests import COEFFICIENTS, TINY_LINKS, tiny
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file, read_text, write_file, write_text
from torchsplit_core.placement import place
from torchsplit_core.values import (
    InputFault,
    LinearThroughput,
    PlacementGpu,
    PlacementSolver,
    RooflineGpu,
    RooflineThroughput,
    TableThroughput,
    ThroughputRow,
)

ROWS = tuple(
    ThroughputRow(name, batch, layers, 100.0 * batch / layers)
    for name in ("A100", "V100")
    for batch in (4.0, 16.0)
    for layers in (1, 4)
)


def links(row: int, place: int, value: float) -> tuple[tuple[float, ...], ...]:
    found = [list(entries) for entries in TINY_LINKS]
    found[row][place] = value
    return tuple(tuple(entries) for entries in found)


def gpu(number: int, **changes: Any) -> tuple[PlacementGpu, ...]:
    gpus = list(tiny().gpus)
    gpus[number] = replace(gpus[number], **changes)
    return tuple(gpus)


def model(**changes: Any) -> Any:
    return replace(tiny().model, **changes)


DECODE = RooflineThroughput("decode", gpus={name: RooflineGpu(300.0, 2000.0) for name in ("A100", "V100")})


@pytest.mark.parametrize(("changes", "said"), [
    ({"bandwidth_gib_per_s": ()}, "bandwidth_gib_per_s: has 0 rows for 4 GPUs"),
    ({"bandwidth_gib_per_s": (*TINY_LINKS[:3], (1.0,))},
     r"bandwidth_gib_per_s\[3\]: has 1 entries for 4 GPUs"),
    ({"bandwidth_gib_per_s": links(1, 2, -5.0)}, r"bandwidth_gib_per_s\[1\]\[2\]: .*-5.0"),
    ({"bandwidth_gib_per_s": links(1, 2, float("nan"))}, r"\[1\]\[2\]: .*nan"),
    ({"bandwidth_gib_per_s": links(1, 2, 1e300)}, r"\[1\]\[2\]: .*1e\+300"),
    ({"gpus": ()}, "gpus: is empty. Add a GPU"),
    ({"gpus": gpu(2, id=0)}, r"gpus\[2\].id: is 0, as gpus\[0\].id is"),
    ({"gpus": gpu(2, id="1")}, r"gpus\[2\].id: is '1', as gpus\[1\]"),
    ({"gpus": gpu(2, id="")}, "neither a whole number nor a text"),
    ({"gpus": gpu(2, memory_gib=0.0)}, r"gpus\[2\].memory_gib: .*0.0"),
    ({"gpus": gpu(2, type="B300")}, "throughput.coefficients: has no entry for the GPU type 'B300'"),
    ({"model": model(batch_size=1)}, "batch_size: is 1, fewer sequences than the 2 GPUs"),
    ({"model": model(layers=0)}, "model.layers: .*0"),
    ({"model": model(layers=10**9)}, "model.layers: .*1000000000"),
    ({"model": model(active_layer_weight_gib=2.0)}, "active_layer_weight_gb: is 2, more than the whole"),
    ({"communication_efficiency": 1.5}, "communication_efficiency: is 1.5, above the largest share 1"),
    ({"max_gpus_per_segment": 0}, "max_gpus_per_segment: .*0"),
    ({"units": "miles"}, "units: unknown value 'miles'. Known values: tokens_per_s, seed_literal"),
    ({"split": "half"}, "split: unknown value 'half'"),
    ({"throughput": RooflineThroughput("decode")},
     "unknown GPU type 'A100'. Did you mean A100-40GB or A100-80GB"),
    ({"throughput": RooflineThroughput("decode", 2.0)}, "compute_efficiency: is 2, above the largest share"),
    ({"throughput": RooflineThroughput("decode", gpus={"A100": RooflineGpu(0.0, 1.0)})},
     "throughput.gpus.A100.tflops: .*0.0"),
    ({"throughput": TableThroughput(ROWS[:4])}, "throughput.rows: has no row for the GPU type 'V100'"),
    ({"throughput": TableThroughput(ROWS[1:])},
     "throughput.rows: has A100 with batch 4 and with 1 layers, but not with both in one row"),
    ({"throughput": TableThroughput((*ROWS, ROWS[2]))}, r"throughput.rows\[8\]: .* a second time"),
    ({"throughput": TableThroughput((replace(ROWS[0], throughput=0.0),))},
     r"throughput.rows\[0\].throughput: .*0.0"),
    ({"split": "tensor"}, "split: is tensor, .* but throughput is linear"),
    ({"model": model(sequences_in_flight=16)}, "model.sequences_in_flight: is 16, but only a decode has it"),
    ({"model": model(prefill_chunk=16)}, "model.prefill_chunk: is 16, but only a decode has it"),
    ({"model": model(sequences_in_flight=15), "throughput": DECODE},
     "sequences_in_flight: is 15, fewer than the 16 sequences of one batch. Raise it to 16 or more"),
    ({"model": model(sequences_in_flight=0), "throughput": DECODE}, "sequences_in_flight: .*0"),
    ({"model": model(prefill_chunk=-1), "throughput": DECODE}, "prefill_chunk: .*-1"),
    ({"throughput": DECODE, "solver": PlacementSolver("literal")},
     r"solver.method: the published program \(literal\) has no sequences in flight"),
    (
        {"throughput": replace(DECODE, phase="prefill"), "split": "tensor",
         "solver": PlacementSolver("literal")},
        r"solver.method: the published program \(literal\) can not cut a layer",
    ),
    ({"throughput": LinearThroughput({"A100": replace(COEFFICIENTS["A100"], batch=float("inf"))})},
     "coefficients.A100.batch: .*inf"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused(changes, said):
    with pytest.raises(InputFault, match=said):
        place(tiny(2, **changes))


def test_a_model_that_fits_nowhere_is_infeasible_and_says_what_is_missing():
    heavy = model(layer_weight_gib=100.0)
    outcome = place(tiny(2, model=heavy))
    assert outcome.status == "infeasible" and outcome.throughput is None and not outcome.segments
    # One layer and half the batch on the GPU with the most memory: 100 + 0.817578125 of 80 GiB.
    assert outcome.message.startswith("One layer on GPU 0 (A100) needs 100.8 GiB with 8 of 16 sequences")
    assert "20.82 GiB are missing" in outcome.message
    for changes in ({"split": "proportional"}, {"solver": PlacementSolver("literal")}):
        other = place(tiny(2, model=heavy, **changes))
        assert other.status == "infeasible" and "are missing" in other.message


def test_a_batch_too_large_for_one_gpu_fits_on_two():
    # A sequence's activations take 10.2 GiB: 16 fit on no GPU, a part of 12 does.
    wide = model(sequence_length=204_800)
    assert "GiB are missing" in place(tiny(1, model=wide)).message
    outcome = place(tiny(4, model=replace(wide, batch_size=12)))
    assert outcome.status == "optimal" and len(outcome.segments[0].gpu_ids) > 1


def test_a_measured_table_that_falls_and_rises_is_handled():
    jagged = tuple(
        replace(row, throughput=30.0 if (row.batch, row.layers) == (16.0, 1) else row.throughput)
        for row in ROWS
    )
    for split in ("equal", "proportional"):
        outcomes = [
            place(tiny(2, throughput=TableThroughput(jagged), split=split, method=method))
            for method in ("exact", "literal")
        ]
        assert outcomes[0].status == outcomes[1].status == "optimal"
        assert outcomes[0].basis == "measured"
        assert outcomes[0].throughput == pytest.approx(outcomes[1].throughput)


def changed(path: str, value: object) -> str:
    data = json.loads(write_text(tiny()))
    place = data
    *front, last = path.split(".")
    for part in front:
        place = place[int(part)] if isinstance(place, list) else place[part]
    place[int(last) if isinstance(place, list) else last] = value
    return json.dumps(data)


@pytest.mark.parametrize(("path", "value", "said"), [
    ("bandwidth_gib_per_s.0.1", -1.0, r"bandwidth_gib_per_s\[0\]\[1\]: is -1.0"),
    ("bandwidth_gib_per_s.0.1", float("nan"), "NaN"),
    ("bandwidth_gib_per_s.0.1", "fast", r"bandwidth_gib_per_s\[0\]\[1\]: is 'fast'"),
    ("gpus.0.id", 1.5, r"gpus\[0\].id: is 1.5, not a whole number or text"),
    ("gpus.0.memory", 80, r"gpus\[0\].memory: is not a known field. Did you mean memory_gib"),
    ("throughput.kind", "guess", "throughput"),
    ("throughput.coefficients.A100.batch", None, "coefficients.A100.batch"),
    ("model.batch_size", 0, "model.batch_size: .*0"),
    ("split", "half", "split"),
    ("solver.method", "magic", "solver.method"),
])  # fmt: skip
def test_a_broken_file_is_refused_with_its_place(path, value, said):
    with pytest.raises(InputFault, match=said):
        read_text(changed(path, value))


@pytest.mark.parametrize("request_", [
    tiny(2, split="proportional", gpus=gpu(2, id="node0/gpu2")),
    tiny(2, throughput=TableThroughput(ROWS)),
    tiny(
        1,
        throughput=RooflineThroughput(
            "decode", 0.4, gpus={name: RooflineGpu(100.0, 900.0) for name in ("A100", "V100")}
        ),
    ),
])  # fmt: skip
def test_requests_and_outcomes_are_read_as_they_were_written(request_):
    assert read_text(write_text(request_)) == ("torchsplit.placement_request", request_)
    outcome = place(request_)
    assert read_text(write_text(outcome)) == ("torchsplit.placement", outcome)


def test_the_command_ends_as_its_outcome_does(tmp_path, capsys):
    target = tmp_path / "out.json"

    def run(request, *more):
        path = write_file(request, tmp_path / "request.json")
        return main(["place", str(path), "-o", str(target), *more])

    assert run(tiny(2), "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads(target.read_text())
    assert "optimal: 301.784 tokens/s. layers 1–4 on 0, 1" in printed.err
    assert run(tiny(2), "--method", "literal") == 0
    assert read_file(target)[1].statistics["variables"] == 1041
    cut = ((0.0,) * 4,) * 4
    assert run(tiny(1, model=model(layer_weight_gib=30.0), bandwidth_gib_per_s=cut)) == 3
    assert read_file(target)[1].status == "infeasible"
    assert "infeasible: The missing links stand in the way" in capsys.readouterr().err
    long = tiny(4, model=model(layers=12))
    assert run(long, "--method", "literal", "--time-limit", "0.001") == 4
    assert read_file(target)[1].status == "timeout"
    assert run(tiny(2, gpus=gpu(2, id=0))) == 2
    assert run(tiny(2), "--time-limit", "0") == 2
    assert "solver.time_limit_s: is 0.0, not above 0" in capsys.readouterr().err


def test_the_published_demo_case_is_proven():
    request = read_file(ROOT / "examples" / "placements" / "thirty_gpus.json")[1]
    outcome = place(request)
    assert outcome.status == "optimal" and outcome.gap == 0
    assert outcome == replace(place(request), statistics=outcome.statistics)
