"""Contract files: what is written can be read, what breaks the contract is refused with its place."""

import json
import re

import pytest

from tests.support.paths import ROOT
from tests.support.pipes import pipe_with
from tools.write_examples import within_response_times
from torchsplit_core.files import (
    FORMATS,
    contract,
    parse_json,
    read_file,
    read_text,
    schema_of,
    write_file,
    write_text,
)
from torchsplit_core.profiling.library import mix_request
from torchsplit_core.values import InputFault, NodeProfile, NodeTimes, PlanOutcome, PlanRequest, Profile

REQUEST = {
    "format": "torchsplit.plan_request",
    "version": 1,
    "gpus": [{"id": "node0/gpu0", "type": "A100-80GB", "layouts": None}, {"type": "A100-80GB", "count": 3}],
    "models": [
        {
            "name": "bert",
            "weight": 1.0,
            "demand_rps": 19,
            "min_throughput_rps": 19.0,
            "max_latency_ms": 2895.3,
            "cap_at_demand": False,
            "variants": [
                {
                    "name": "whole",
                    "cut_bytes": [],
                    "stages": [
                        {
                            "name": "whole",
                            "points": [
                                {"gpu_type": "A100-80GB", "profile": "1g.10gb", "batch_size": 8,
                                 "processes": 1, "throughput_rps": 120.0, "latency_ms": 62.0,
                                 "memory_gib": 3.2, "basis": "measured"}
                            ],
                        }
                    ],
                }
            ],
        }
    ],
    "colocations": [{"models": ["bert", "ocr"], "mode": "hard"}],
    "objective": {"kind": "leximin"},
    "sharing": "exclusive",
    "link_gb_per_s": 12.0,
    "solver": {"time_limit_s": 60},
}  # fmt: skip

OUTCOME = {
    "format": "torchsplit.plan",
    "version": 1,
    "request_sha256": "00",
    "status": "infeasible",
    "objective": {
        "kind": "leximin", "value": None, "sorted_normalised": [], "bound": None, "gap": None,
        "proven_levels": 0,
    },
    "gpus": [],
    "models": [],
    "conflicts": [
        {
            "demands": [
                {"model": "bert", "demand": "min_throughput_rps"},
                {"models": ["bert", "ocr"], "demand": "colocation"},
            ],
            "message": "both",
        }
    ],
    "least_relaxation": [{"model": "bert", "demand": "min_throughput_rps", "from": 19.0, "to": 12.5}],
    "warnings": [],
    "statistics": {"build_s": 0.1, "solve_s": 0.4, "verify_s": 0.01, "solver": "highs 1.15.1", "details": {}},
}  # fmt: skip


def test_a_plan_request_reads_into_its_value():
    name, value = read_text(json.dumps(REQUEST))
    assert name == "torchsplit.plan_request"
    assert isinstance(value, PlanRequest)
    assert value.models[0].demand_rps == 19.0
    assert value.models[0].variants[0].stages[0].points[0].memory_gib == 3.2
    assert value.gpus[1].count == 3 and value.gpus[0].layouts is None
    assert read_text(write_text(value)) == (name, value)


def test_a_plan_reads_and_writes_field_for_field():
    _, value = read_text(json.dumps(OUTCOME))
    assert isinstance(value, PlanOutcome)
    assert value.least_relaxation is not None and value.least_relaxation[0].new == 12.5
    assert json.loads(write_text(value)) == OUTCOME


def changed(path: str, value: object) -> str:
    data = json.loads(json.dumps(REQUEST))
    place = data
    *front, last = path.split(".")
    for part in front:
        place = place[int(part)] if isinstance(place, list) else place[part]
    if value is ...:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return json.dumps(data)


POINT = "models.0.variants.0.stages.0.points.0"
PLACE = "models[0].variants[0].stages[0].points[0]"


@pytest.mark.parametrize(("path", "value", "match"), [
    ("gpu", 1, "gpu: is not a known field. Did you mean gpus?"),
    ("gpus.1.cuont", 3, "gpus[1].cuont: is not a known field. Did you mean count or cost?"),
    (f"{POINT}.throughput_rps", -1.0, "throughput_rps: is -1.0, below the least value 0. Give 0 or more."),
    (f"{POINT}.batch_size", 0, f"{PLACE}.batch_size: is 0, below the least value 1. Give 1 or more."),
    (f"{POINT}.batch_size", "8", "batch_size: is '8', not a whole number. Give a whole number."),
    (f"{POINT}.latency_ms", float("nan"), "has the number NaN, which JSON does not have."),
    ("models.0.weight", 0, "models[0].weight: is 0, not above 0. Give a number above 0."),
    ("models.0.weight", None, "weight: is null, not a number. Give a number."),
    ("models.0.demand_rps", 1e-12, "demand_rps: is 1e-12, below the least positive value 1e-09."),
    ("models.0.name", ..., "models[0].name: is missing. Add it"),
    ("models.0.variants", [], "models[0].variants: is empty. Give at least 1 entry."),
    ("models.0.arrivals", {"rate_rps": 1}, "models[0].arrivals.kind: is missing."),
    ("models.0.arrivals", {"kind": "poison"}, "arrivals.kind: is 'poison', not a known value. Did you mean"),
    ("models.0.arrivals", {"kind": "gamma", "rate_rps": 1}, "models[0].arrivals.cv: is missing."),
    ("models.0.arrivals", {"kind": "gamma", "rate_rps": "x", "c": 1},
     "rate_rps: is 'x', not a number (and 2 more fields are at fault)."),
    ("sharing", "sometimes", "sharing: is 'sometimes', not a known value. Known values: exclusive, frac"),
    ("objective.survives", 3, "objective.survives: is 3, not 0 or 1."),
    ("version", 2, "version: is 2, not a version of torchsplit.plan_request that can be read."),
    ("format", "torchsplit.plam", "format: is 'torchsplit.plam', not a known format. Did you mean"),
    ("solver.time_limit_s", 0, "solver.time_limit_s: is 0, not above 0."),
])  # fmt: skip
def test_a_broken_request_is_refused_with_its_place(path, value, match):
    with pytest.raises(InputFault, match=re.escape(match)):
        read_text(changed(path, value))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "\x00", "[" * 100_000, '{"format": ["torchsplit.plan"]}']
)
def test_what_is_no_contract_file_is_refused(text):
    with pytest.raises(InputFault):
        read_text(text)


def test_reading_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(InputFault, match=r"none\.json: cannot be read: no such file\. Check the path\.$"):
        read_file(tmp_path / "none.json")
    (tmp_path / "noise.json").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InputFault, match="is not text in UTF-8"):
        read_file(tmp_path / "noise.json")
    (tmp_path / "request.json").write_text(json.dumps(REQUEST))
    with pytest.raises(InputFault, match=r"is a torchsplit\.\w+ file, not a torchsplit\.plan file"):
        read_file(tmp_path / "request.json", expected="torchsplit.plan")


def test_of_what_has_no_size_no_more_is_read_than_the_largest_file(monkeypatch):
    monkeypatch.setattr(contract, "LARGEST_FILE_BYTES", 1000)
    with pipe_with(b" " * 2000) as path, pytest.raises(InputFault, match="has more than the 0 MiB"):
        read_file(path)


def test_a_byte_order_mark_is_no_part_of_the_text():
    text = json.dumps(REQUEST)
    assert read_text(f"\ufeff{text}") == read_text(text)


def test_writing_replaces_the_whole_file_or_nothing(tmp_path):
    _, value = read_text(json.dumps(REQUEST))
    path = write_file(value, tmp_path / "deep" / "request.json")
    assert read_file(path)[1] == value
    assert [found.name for found in path.parent.iterdir()] == ["request.json"]
    (tmp_path / "blocked").write_text("")
    with pytest.raises(InputFault, match="cannot be written"):
        write_file(value, tmp_path / "blocked" / "x.json")


def test_the_schemas_in_the_docs_are_those_of_the_program():
    folder = ROOT / "docs" / "schemas"
    assert {path.stem for path in folder.glob("*.json")} == set(FORMATS)
    for name in FORMATS:
        assert json.loads((folder / f"{name}.json").read_text()) == schema_of(name), (
            "run python -m tools.write_schemas"
        )


def test_every_example_file_is_valid():
    examples = sorted((ROOT / "examples").rglob("*.json"))
    assert {read_file(path)[0] for path in examples} == set(FORMATS)


def test_the_example_mixes_are_those_of_the_library_with_their_licence():
    folder = ROOT / "examples" / "mixes"
    expected = {
        "s1_fewest_gpus": mix_request("S1", 8, "min_gpus"),
        "s1_fair_2gpus": mix_request("S1", 2, "leximin"),
        "s3_fewest_gpus": mix_request("S3", 8, "min_gpus"),
        "s3_fair_5gpus": mix_request("S3", 5, "leximin"),
        "s1_response_time": within_response_times("S1", 8),
    }
    found = {
        path.stem: read_file(path, expected="torchsplit.plan_request")[1] for path in folder.glob("*.json")
    }
    assert found == expected, "run python -m tools.write_examples --mixes"
    notice = (ROOT / "torchsplit_core" / "profiling" / "data" / "NOTICE.md").read_text()
    assert notice[notice.index("MIT License") :] in (folder / "README.md").read_text()


@pytest.mark.slow
def test_times_of_operations_are_written_where_they_were_measured_and_stay_small():
    """Ten thousand operations at eight batch sizes, with six digits each as a measurement writes them."""
    sizes = (1, 2, 4, 8, 16, 32, 64, 128)
    times = {
        batch: NodeTimes(0.123456 * batch, 0.0123456, 0.111111 * batch, 1.23456 * batch) for batch in sizes
    }
    timed = tuple(NodeProfile(f"linear_{n}", 0.0001, 1, 1, {}, times) for n in range(10_000))
    known = Profile("sample:x", "hash", nodes=(*timed, NodeProfile("add", 0.0, 1, 1)))
    text = write_text(known)
    assert text.count('"times_ms"') == 10_000 and len(text) < 16 * 2**20
    assert read_text(text) == ("torchsplit.profile", known)


@pytest.mark.parametrize(("text", "line", "column", "key", "first"), [
    ('{"a": 1, "a": 2}', 1, 10, "a", 1),
    ('{"b": {"a": 1},\n "c": [{"a": 1}, {"a": 1,\n  "d": {"a": 2}, "a" :3}]}', 3, 18, "a", 2),
    ('{"a b": 1,\n"a\\u0020b": 2}', 2, 1, "a b", 1),
    ('{"t": "{\\"a\\": 1, ", "a": "a", "u": "\\\\",\n\n"a": 1}', 3, 1, "a", 1),
    ('{"x": {"k": 1, "k": 1}, "x": 2}', 1, 16, "k", 1),
])  # fmt: skip
def test_a_key_that_stands_twice_is_named_with_both_places(text, line, column, key, first):
    """Also beside keys of other objects, texts that look like keys, and one of the two in escapes."""
    with pytest.raises(InputFault) as raised:
        parse_json(text, "mix.json")
    assert raised.value.where == f"mix.json: line {line}, column {column}"
    assert raised.value.problem == f"has the key {key!r} a second time in one object, after line {first}"


@pytest.mark.parametrize("field", ["format", "version", "gpus", "models"])
def test_a_contract_file_has_each_field_once(field):
    """Before anything else of it is said: the last one would count, and an edit of the first go unseen."""
    text = json.dumps(REQUEST)
    assert read_text(text)[0] == "torchsplit.plan_request"
    again = text[:-1] + f', "{field}": {json.dumps(REQUEST[field])}' + "}"
    with pytest.raises(InputFault, match=f"has the key '{field}' a second time"):
        read_text(again)


@pytest.mark.parametrize("statuses", [[[200]], [[200, 1, 2]], [[]], [200], [[200, -1]]])
def test_a_status_without_its_count_is_refused_with_its_place(statuses):
    data = json.loads((ROOT / "examples" / "measurement.json").read_text())
    data["models"][0]["statuses"] = statuses
    with pytest.raises(InputFault, match=r"models\[0\]\.statuses\[0\]"):
        read_text(json.dumps(data))
