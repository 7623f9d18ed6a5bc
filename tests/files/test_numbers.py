"""Numbers and names that break what reckons with them: a value or one message, never another error."""

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.nasty_numbers import EXAMPLES, faults
from tests.support.seeds import repeated
from torchsplit_core import workflow
from torchsplit_core.files import read_file, read_text, write_text
from torchsplit_core.partitioning.solve import solve_partition
from torchsplit_core.placement.request.validate import validate as validate_placement
from torchsplit_core.planning.request.validate import validate as validate_plan
from torchsplit_core.values import InputFault
from torchsplit_core.values.limits import LARGEST_WHOLE, SMALLEST_POSITIVE, check_number, check_whole, is_name

FILES = sorted(EXAMPLES.glob("*.json"))


@pytest.mark.slow
@repeated("file", FILES, kept=12, ids=lambda file: file.stem)
def test_every_number_of_every_format_reads_or_is_one_message(file):
    tries = list(faults(file, every_leaf=False))
    assert len(tries) > 15
    assert [fault for fault in tries if fault is not None] == []


def example(name: str) -> Any:
    return read_file(EXAMPLES / f"{name}.json")[1]


@pytest.mark.parametrize(
    "value", [1e-320, 1e-10, 1e16, float("inf"), float("nan"), 10**400, -1.0, True, "1", None]
)
def test_what_is_no_number_of_a_request_is_refused_wherever_it_comes_from(value):
    with pytest.raises(InputFault):
        check_number("a rate", value)
    request = example("plan_request")
    for field in ("weight", "demand_rps"):
        model = replace(request.models[0], **{field: value})
        with pytest.raises(InputFault):
            validate_plan(replace(request, models=(model, *request.models[1:])))
    placement = example("placement_request")
    row = (0.0, *([value] * (len(placement.gpus) - 1)))
    with pytest.raises(InputFault):
        validate_placement(replace(placement, bandwidth_gib_per_s=(row, *placement.bandwidth_gib_per_s[1:])))


def test_a_demand_at_the_least_is_planned_and_verified():
    request = example("plan_request")
    model = replace(request.models[0], demand_rps=SMALLEST_POSITIVE, min_throughput_rps=None)
    outcome = workflow.plan(replace(request, models=(model, *request.models[1:])))
    assert outcome.status in ("optimal", "feasible")


def test_zero_stays_allowed_where_nothing_is_divided_by_it():
    for value in (0, 0.0, -0.0, SMALLEST_POSITIVE, 1e15):
        check_number("a rate", value)
    check_number("a coefficient", -1e-300, signed=True)
    with pytest.raises(InputFault, match="above 0"):
        check_number("a rate", 0.0, positive=True)


@pytest.mark.parametrize(
    "value", [-1, LARGEST_WHOLE + 1, 2**63 - 1, 10**4000, 1.0, True, None], ids=lambda value: str(value)[:9]
)
def test_sizes_are_whole_numbers_that_doubles_hold(value):
    with pytest.raises(InputFault):
        check_whole("bytes", value)
    request = example("partition_request")
    for field in ("memory_bytes", "output_bytes"):
        node = replace(request.nodes[0], **{field: value})
        with pytest.raises(InputFault):
            solve_partition(replace(request, nodes=(node, *request.nodes[1:])))
    with pytest.raises(InputFault):
        solve_partition(replace(request, devices=replace(request.devices, count=value)))


def test_the_largest_sizes_are_solved():
    request = example("partition_request")
    nodes = tuple(
        replace(node, memory_bytes=LARGEST_WHOLE, output_bytes=LARGEST_WHOLE) for node in request.nodes
    )
    devices = replace(request.devices, memory_bytes=None)
    outcome = solve_partition(replace(request, nodes=nodes, devices=devices))
    assert outcome.status in ("optimal", "feasible")


NO_NAMES = [
    "a\x00", "a\nb", "\r", "\x1b[31m", "a\tb", "\x7f", "\x85", "a\u2028b", "\u2029", "\ud800", "a\udfff",
]  # fmt: skip


@pytest.mark.parametrize("name", NO_NAMES)
def test_control_characters_name_nothing(name):
    assert not is_name(name)
    request = example("plan_request")
    first = request.models[0]
    variant = first.variants[0]
    stage = replace(variant.stages[0], name=name)
    bad = (
        replace(first, name=name),
        replace(first, variants=(replace(variant, name=name),)),
        replace(first, variants=(replace(variant, stages=(stage,), cut_bytes=()),)),
    )
    for model in bad:
        changed = replace(request, models=(model,), colocations=())
        with pytest.raises(InputFault, match="contains a control character"):
            validate_plan(changed)
        with pytest.raises(InputFault, match="half a surrogate pair"):
            read_text(as_text(request, changed))
        with pytest.raises(InputFault, match="half a surrogate pair"):
            write_text(changed)
    gpus = (replace(request.gpus[0], id=name, count=1),)
    with pytest.raises(InputFault, match="contains a control character"):
        validate_plan(replace(request, gpus=gpus))
    placement = example("placement_request")
    with pytest.raises(InputFault, match="contains a control character"):
        validate_placement(
            replace(placement, gpus=(replace(placement.gpus[0], id=name), *placement.gpus[1:]))
        )


def as_text(request: Any, changed: Any) -> str:
    """The file of a request that `write_text` refuses: of the request before, with the names of the changed one."""
    data = json.loads(write_text(replace(request, colocations=())))
    model, new = data["models"][0], changed.models[0]
    data["models"] = [model]
    model["name"] = new.name
    model["variants"] = model["variants"][:1]
    model["variants"][0]["name"] = new.variants[0].name
    for stage, named in zip(model["variants"][0]["stages"], new.variants[0].stages, strict=False):
        stage["name"] = named.name
    return json.dumps(data)


@pytest.mark.parametrize(
    "name", ["bert", "node0/gpu0", "é", "模型", "\N{GRINNING FACE}", "a b", "a\u202eb", "sample:bert@large"]
)
def test_letters_of_all_kinds_name_something(name):
    assert is_name(name)
