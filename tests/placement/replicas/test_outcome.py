"""Several pipelines as an outcome: from the request or the command line, checked, and every breach found."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.placement.oracle import best_value
from tests.support.placement.requests import COEFFICIENTS, random_request, tiny
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file
from torchsplit_core.placement import place, violations
from torchsplit_core.values import (
    InputFault,
    LinearThroughput,
    PlacedReplica,
    PlacementGpu,
    PlacementOutcome,
    PlacementSolver,
)

pytestmark = pytest.mark.slow

REQUEST = tiny(2, model=replace(tiny().model, layers=6, layer_weight_gib=14.0), max_replicas=3)
"""Layers of 14 GiB: an A100 holds five, a V100 two."""
ALONE = tiny(2, max_replicas=4)
EXAMPLE = ROOT / "examples" / "placement_request.json"

Change = Callable[[PlacementOutcome], PlacementOutcome]


def on(number: int, **changes: Any) -> Change:
    """A pipeline changed; the first one in the outcome's own fields too."""

    def change(outcome):
        replicas = list(outcome.replicas)
        replicas[number] = replace(replicas[number], **changes)
        first = replicas[0]
        return replace(outcome, replicas=tuple(replicas), segments=first.segments, links=first.links)

    return change


def told(**changes: Any) -> Change:
    return lambda outcome: replace(outcome, **changes)


def twice(outcome: PlacementOutcome) -> PlacementOutcome:
    first = outcome.replicas[0]
    return replace(outcome, replicas=(first, first), throughput=2 * first.throughput)


def turned(outcome: PlacementOutcome) -> PlacementOutcome:
    replicas = outcome.replicas[::-1]
    return replace(outcome, replicas=replicas, segments=replicas[0].segments, links=replicas[0].links)


@pytest.fixture(scope="module")
def sound() -> PlacementOutcome:
    return place(ALONE)


def test_the_tiny_case_runs_four_times_at_once(sound):
    assert sound.status == "optimal" and sound.gap == 0.0
    assert [one.throughput for one in sound.replicas] == pytest.approx([217.52, 217.52, 137.616, 137.616])
    assert sound.throughput == sound.bound == pytest.approx(710.272)
    assert sound.segments == sound.replicas[0].segments and sound.links == sound.replicas[0].links
    assert sound.latency_s == max(replica.latency_s for replica in sound.replicas)
    assert list(violations(ALONE, sound)) == []


def test_pipelines_of_several_segments_are_sound():
    outcome = place(REQUEST)
    assert outcome.status == "optimal"
    assert list(violations(REQUEST, outcome)) == []
    assert any(len(replica.segments) > 1 for replica in outcome.replicas)


@pytest.mark.parametrize(("change", "said"), [
    (twice, "pipeline 1 has a GPU of an earlier pipeline"),
    (turned, "the fastest first"),
    (told(throughput=1.0), "its throughput is 710.27"),
    (told(bound=700.0), "below its throughput"),
    (told(gap=0.5), "is not that of its bound"),
    (told(latency_s=1.0), "not the longest"),
    (told(segments=()), "without segments"),
    (told(replicas=()), "it has 0 pipelines"),
    (on(0, throughput=218.0), "pipeline 0: its throughput is"),
    (on(1, latency_s=1.0), "pipeline 1: a pass takes"),
    (on(1, segments=()), "pipeline 1: it ends with layer 0 of 4"),
    (told(status="infeasible", segments=(), links=(), message="none"), "with a placement"),
])  # fmt: skip
def test_a_lie_is_found(sound, change, said):
    assert said in "\n".join(violations(ALONE, change(sound)))


def test_what_stands_first_is_the_first_pipeline(sound):
    other = replace(sound, segments=sound.replicas[1].segments)
    assert "not those of its first pipeline" in "\n".join(violations(ALONE, other))


def test_more_pipelines_than_were_asked_for_are_found(sound):
    assert "it has 4 pipelines" in "\n".join(violations(replace(ALONE, max_replicas=3), sound))
    one = place(replace(ALONE, max_replicas=1))
    assert one.replicas == ()
    replica = PlacedReplica(301.784, one.latency_s or 0.0, one.segments, one.links)
    with_replica = replace(one, replicas=(replica,))
    assert "where one was asked for" in "\n".join(violations(replace(ALONE, max_replicas=1), with_replica))


@pytest.mark.parametrize("units", ("tokens_per_s", "seed_literal"))
def test_never_below_one_pipeline_and_no_more_than_as_many_times_it(units):
    for seed in range(12):
        request = replace(random_request(seed, units, "equal"), max_replicas=2)
        one, outcome = best_value(request), place(request)
        assert outcome.status == ("optimal" if one else "infeasible"), seed
        if outcome.throughput is not None:
            assert one * (1 - 1e-9) <= outcome.throughput <= 2 * one * (1 + 1e-9), seed


def test_an_earlier_outcome_is_a_start_and_changes_nothing(sound):
    again = place(ALONE, warm_start=sound)
    assert (again.throughput, again.replicas) == (sound.throughput, sound.replicas)


def test_no_time_at_all_is_not_infeasible():
    outcome = place(replace(REQUEST, solver=PlacementSolver(time_limit_s=1e-9)))
    assert outcome.status in ("timeout", "feasible", "optimal")
    assert list(violations(REQUEST, outcome)) == []


def test_what_holds_no_layer_or_has_no_link_is_infeasible_with_its_cause():
    small = replace(REQUEST, gpus=tuple(replace(gpu, memory_gib=20.0) for gpu in REQUEST.gpus))
    outcome = place(small)
    assert outcome.status == "infeasible" and "No pipeline holds all 6 layers" in outcome.message
    cut = place(replace(REQUEST, bandwidth_gib_per_s=((0.0,) * 4,) * 4))
    assert cut.status == "infeasible" and "missing links" in cut.message


def test_the_published_program_knows_one_pipeline():
    with pytest.raises(InputFault) as fault:
        place(replace(ALONE, solver=PlacementSolver("literal")))
    assert fault.value.where == "solver.method"
    assert "max_replicas" in str(fault.value)


def test_segments_of_many_types_need_no_look_at_every_mix():
    base = COEFFICIENTS["A100"]
    types = {f"type{one}": replace(base, constant=100.0 + 10 * one) for one in range(14)}
    gpus = tuple(PlacementGpu(f"{name}/{one}", name, 80.0) for name in types for one in range(3))
    request = tiny(
        12, gpus=gpus, throughput=LinearThroughput(types),
        bandwidth_gib_per_s=((400.0,) * len(gpus),) * len(gpus), max_replicas=2,
        solver=PlacementSolver(time_limit_s=3.0),
    )  # fmt: skip
    outcome = place(request)
    assert outcome.status in ("optimal", "feasible")
    # A second pipeline may need more than the time that a slow machine leaves it.
    assert 1 <= len(outcome.replicas) <= 2
    assert outcome.bound is not None and outcome.bound >= (outcome.throughput or 0.0)
    assert list(violations(request, outcome)) == []


def test_from_the_command_line(tmp_path, capsys):
    written = tmp_path / "out.json"
    asked = tmp_path / "request.json"
    assert main(["place", str(EXAMPLE), "--replicas", "3", "-o", str(written)]) == 0
    said = capsys.readouterr().err
    assert "optimal: 628.187 tokens/s in 3 pipelines" in said
    assert "217.52 tokens/s: layers 1–4 on 0" in said
    outcome = read_file(written, expected="torchsplit.placement")[1]
    assert len(outcome.replicas) == 3
    document = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    asked.write_text(json.dumps({**document, "max_replicas": 3}), encoding="utf-8")
    assert list(violations(read_file(asked)[1], outcome)) == []
    assert main(["place", str(EXAMPLE), "--replicas", "0", "-o", str(written)]) == 2
    assert "max_replicas: is 0" in capsys.readouterr().err
