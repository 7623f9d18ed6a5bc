"""The request command: every field of a plan request has its option, and what is unclear is one message."""

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.paths import EXAMPLES
from tests.support.planning.requests import whole_model
from torchsplit_core.cli.arguments.request_options import add_request_options, with_colocations
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file, write_file
from torchsplit_core.planning.request.colocation_index import flows_of
from torchsplit_core.values import (
    Colocation,
    FleetEntry,
    Objective,
    PlanModel,
    PlanRequest,
    Profile,
    ProfileRow,
    Stage,
    Variant,
)


def profile(name: str, rps: float = 100.0) -> Profile:
    row = ProfileRow("whole", "A30-24GB", "2g.12gb", 4, 1, rps, 30.0, 0.8 * rps, 1.5 * rps, 3.0, "estimated")
    return Profile(f"import:{name}", name, rows=(row,))


@pytest.fixture
def paths(tmp_path) -> list[str]:
    found = []
    for name in ("bert", "ocr", "a+b"):
        write_file(profile(name), tmp_path / f"{name}.json")
        found.append(str(tmp_path / f"{name}.json"))
    return found


def asked(tmp_path: Path, *arguments: str) -> PlanRequest:
    path = tmp_path / "request.json"
    assert main(["request", *arguments, "-o", str(path)]) == 0
    return read_file(path)[1]


def test_every_field_has_its_option(paths, tmp_path):
    request = asked(
        tmp_path, *paths, "--gpus", "n/g=A30-24GB@cost=3@node=n@layouts=4x1g.6gb/2x2g.12gb,2xA30-24GB",
        "--colocate", "bert+ocr", "--prefer-together", "a+b+ocr=1.2e6,bert+a+b=5", "--cap", "bert", "a+b",
        "--memory-penalty", "0.5", "--separation-weight", "1e-6", "--max-tenants", "3", "--plan-at", "low",
        "--sharing", "fractional", "--tier", "bert=2,a+b=0",
    )  # fmt: skip
    assert [model.tier for model in request.models] == [2, 0, 0]
    assert request.gpus == (
        FleetEntry("A30-24GB", "n/g", 1, (("1g.6gb",) * 4, ("2g.12gb",) * 2), 3.0, "n"),
        FleetEntry("A30-24GB", count=2),
    )
    assert request.colocations == (
        Colocation(("bert", "ocr")),
        Colocation(("a+b", "ocr"), "soft", 1.2e6),
        Colocation(("bert", "a+b"), "soft", 5.0),
    )
    assert [model.cap_at_demand for model in request.models] == [True, False, True]
    assert request.objective == Objective("leximin", 0.5, 1e-6)
    assert (request.max_tenants_per_slice, request.solver.plan_at, request.sharing) == (
        3, "low", "fractional",
    )  # fmt: skip
    point = request.models[0].variants[0].stages[0].points[0]
    assert (point.low_rps, point.high_rps, point.basis) == (80.0, 150.0, "estimated")


def test_without_them_a_request_says_nothing_of_them(paths, tmp_path):
    request = asked(tmp_path, *paths, "--gpus", "A30-24GB")
    text = (tmp_path / "request.json").read_text()
    assert request.colocations == () and "plan_at" not in text and "allowed" not in text


@pytest.mark.parametrize(("option", "value", "told"), [
    ("--colocate", "bert", "'bert' names one model, needs at least two"),
    ("--colocate", "bert+gone",
     "names 'gone', which is no model of the request and no stage of one. Known models and stages: bert"),
    ("--colocate", "bert+bert", "different models"),
    ("--prefer-together", "bert+ocr", "MODEL+MODEL=BYTES"),
    ("--prefer-together", "bert+ocr=much", "MODEL+MODEL=BYTES"),
    ("--prefer-together", "bert+ocr=-1", "bytes_per_request"),
    ("--colocate", "bert+ocr/gone", "names 'ocr/gone', which is no model"),
    ("--routed", "bert+ocr", "is routed, and its bytes_per_request is 0"),
    ("--routed", "bert+ocr=-1", "bytes_per_request"),
    ("--routed", "bert=1", "names one model, needs at least two"),
    ("--routed", "bert+gone=1", "names 'gone', which is no model"),
    ("--cap", "gone", "unknown model 'gone'. Known models: bert"),
    ("--forbid", "bert", "MODEL=VARIANT"),
    ("--forbid", "bert=cut7", "unknown variant 'bert=cut7'"),
    ("--forbid", "bert=whole", "no variant of whole is allowed"),
    ("--memory-penalty", "-1", "objective.memory_violation_penalty"),
    ("--separation-weight", "nan", "objective.separation_weight"),
    ("--max-tenants", "0", "max_tenants_per_slice"),
    ("--tier", "bert=-1", "--tier bert: is -1.0, below the least value 0"),
    ("--tier", "bert=1.5", "--tier bert: is 1.5, not a whole number"),
    ("--tier", "bert=1e9", "--tier bert: is 1000000000, above the greatest value 1000"),
    ("--tier", "bert=nan", "--tier bert: is nan, not a finite number"),
    ("--tier", "gone=1", "unknown model 'gone'. Known models: bert"),
    ("--objective", "min_gpus", "min_gpus: no model has a minimum, so the fewest GPUs is none."),
    ("--gpus", "A30-24GB@layouts=4g.24gb+4g.24gb", "which does not fit on one A30-24GB"),
    ("--gpus", "RTX-PRO-5000-Blackwell-48GB@layouts=1g.24gb", "whose starts on RTX-PRO-5000"),
    ("--gpus", "a=A30-24GB,a=A30-24GB", "names the id 'a' twice"),
])  # fmt: skip
def test_what_is_unclear_is_one_message(option, value, told, paths, stderr_of):
    said = stderr_of("request", *paths, "--gpus", "A30-24GB", option, value)
    assert told in said and "Traceback" not in said


def test_stages_are_named_as_in_a_request(paths):
    cut = Variant(
        "cut1", (Stage("cut1.1of2", ()), Stage("cut1.2of2", ())), (0.0,), cut_bytes_per_request=(8.0,)
    )
    models = (PlanModel("bert", (cut,)), whole_model("a+b", ()))
    made = argparse.ArgumentParser()
    add_request_options(made)
    options = made.parse_args(
        ["--colocate", "bert/cut1.1of2+a+b", "--routed", "bert/cut1.cut1.1of2+bert/cut1.2of2,a+b+bert=5"]
    )
    request = with_colocations(PlanRequest((FleetEntry("A30-24GB"),), models), options)
    assert request.colocations == (
        Colocation(("bert/cut1.1of2", "a+b")),
        Colocation(("bert/cut1.cut1.1of2", "bert/cut1.2of2"), "routed"),
        Colocation(("a+b", "bert"), "routed", 5.0),
    )
    assert [flow.bytes_per_request for flow in flows_of(request)] == [8.0, 5.0]


def test_names_that_read_in_two_ways_are_refused(paths, tmp_path):
    for name in ("a", "b"):
        write_file(profile(name), tmp_path / f"{name}.json")
    more = [*paths, str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert main(["request", *more, "--gpus", "A30-24GB", "--colocate", "a+b+ocr"]) == 2
    assert asked(tmp_path, *more, "--gpus", "A30-24GB", "--colocate", "a+ocr").colocations


@pytest.fixture
def two_lengths(tmp_path) -> str:
    """A profile whose first rows are of 512 tokens."""
    (row,) = profile("bert").rows
    rows = (
        replace(row, sequence_length=512, throughput_rps=90.0),
        replace(row, sequence_length=128, throughput_rps=110.0),
    )
    write_file(replace(profile("bert"), rows=rows), tmp_path / "lengths.json")
    return str(tmp_path / "lengths.json")


def rates(request: PlanRequest) -> dict[str, list[float]]:
    return {
        model.name: [point.throughput_rps for point in model.variants[0].stages[0].points]
        for model in request.models
    }


@pytest.mark.parametrize(("options", "rate"), [((), 90.0), (("--sequence-length", "128"), 110.0)])
def test_rows_of_one_sequence_length_are_taken(two_lengths, paths, tmp_path, options, rate):
    request = asked(tmp_path, two_lengths, paths[1], "--gpus", "1xA30-24GB", *options)
    assert rates(request) == {"bert": [rate], "ocr": [100.0]}


def test_a_sequence_length_that_no_row_has_is_refused(two_lengths, paths, stderr_of):
    ask = ["--gpus", "1xA30-24GB", "--sequence-length", "64"]
    assert "Give one of its lengths: 128, 512." in stderr_of("request", two_lengths, *ask)
    assert "No profile names a sequence length" in stderr_of("request", paths[1], *ask)


def test_a_state_gives_the_fleet_and_stands_in_the_request(tmp_path):
    target = tmp_path / "request.json"
    state = EXAMPLES / "host_state.json"
    assert main(["request", str(EXAMPLES / "profile.json"), "--current", str(state), "-o", str(target)]) == 0
    request, current = read_file(target)[1], read_file(state)[1]
    assert request.current == current
    assert [(gpu.id, gpu.type) for gpu in request.gpus] == [(gpu.id, gpu.type) for gpu in current.gpus]
    assert {gpu.node for gpu in request.gpus} == {"node0"}
