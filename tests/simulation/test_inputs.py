"""Requests that make no sense are one message; what is no fault is simulated, and said."""

import json
from typing import Any

import pytest

from tests.support.simulation.reference import responses
from torchsplit_core.files import read_text, write_text
from torchsplit_core.simulation import simulate
from torchsplit_core.simulation.arrivals import arrival_times_ms
from torchsplit_core.simulation.replication import prepare_model, run_model
from torchsplit_core.simulation.time_base import to_decimal_ticks
from torchsplit_core.values import InputFault, SimulationOutcome, SimulationRequest

BASE: dict[str, Any] = {
    "format": "torchsplit.simulation_request",
    "version": 1,
    "models": [{"name": "m", "stages": ["whole"], "arrivals": {"kind": "poisson", "rate_rps": 50.0}}],
    "servers": [
        {"id": "s", "model": "m", "stage": "whole", "max_batch": 4, "batch_ms": {"1": 10.0, "4": 14.0}}
    ],
    "requests_per_model": 2000,
}


def changed(path: str, value: Any) -> dict[str, Any]:
    data = json.loads(json.dumps(BASE))
    place = data
    *front, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for part in front:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return data


def request_of(data: dict[str, Any]) -> SimulationRequest:
    return read_text(json.dumps(data))[1]


def outcome_of(data: dict[str, Any]) -> SimulationOutcome:
    outcome = simulate(request_of(data))
    assert read_text(write_text(outcome))[1] == outcome
    return outcome


ARRIVALS, SERVER = "models.0.arrivals", "servers.0"


@pytest.mark.parametrize(("path", "value", "match"), [
    (f"{ARRIVALS}.rate_rps", 0, "rate_rps: is 0, not above 0"),
    (f"{ARRIVALS}.rate_rps", -1.0, "rate_rps: is -1.0, not above 0"),
    (f"{ARRIVALS}.rate_rps", float("inf"), "Infinity"),
    (f"{ARRIVALS}.rate_rps", float("nan"), "NaN"),
    (f"{ARRIVALS}.rate_rps", 1e-6, r"over 2e\+09 s, more than 1e\+09 s"),
    (ARRIVALS, {"kind": "gamma", "rate_rps": 5.0}, "cv"),
    (ARRIVALS, {"kind": "gamma", "rate_rps": 5.0, "cv": 0.0}, "cv: is 0.0, below"),
    (ARRIVALS, {"kind": "gamma", "rate_rps": 5.0, "cv": 1e6}, "cv: is 1000000.0, above"),
    (ARRIVALS, {"kind": "mmpp", "states": []}, "states"),
    (ARRIVALS, {"kind": "mmpp", "states": [{"rate_rps": 0.0, "mean_s": 1.0}]}, "no rate above 0"),
    (ARRIVALS, {"kind": "mmpp", "states": [{"rate_rps": 5.0, "mean_s": 0.0}]}, "mean_s: is 0.0, not above 0"),
    (ARRIVALS, {"kind": "mmpp", "states": [{"rate_rps": 1.0, "mean_s": 1e-9}]}, "stays"),
    (ARRIVALS, {"kind": "trace", "times_s": []}, "times_s"),
    (ARRIVALS, {"kind": "trace", "times_s": [0.0, 2.0, 1.0]}, r"times_s\[2\]: is 1.0, less than the 2.0 before it"),
    (ARRIVALS, {"kind": "trace", "times_s": [-1.0]}, r"times_s\[0\]: is -1.0, below"),
    (ARRIVALS, {"kind": "trace", "times_s": [0.0, 1e12]}, "seconds"),
    (ARRIVALS, {"kind": "trace", "times_s": [0.0], "rate_rps": 1.0}, "is not a known field"),
    (ARRIVALS, {"kind": "weekly", "rate_rps": 1.0}, "arrivals"),
    ("models.0.stages", [], "stages"),
    ("models.0.stages", ["whole", "whole"], "has the name '.*' twice"),
    ("models.0.stages", ["whole", "other"], "has no server for 'other'"),
    ("models.0.transfer_ms", [1.0], "has 1 entry for 0 cuts"),
    ("models.0.cut_bytes", [1.0], "has 1 entry for 0 cuts"),
    ("models.0.slo_ms", 0.0, "slo_ms: is 0.0, not above 0"),
    ("models", [], "models"),
    ("models", [BASE["models"][0], BASE["models"][0]], "has the name '.*' twice"),
    ("servers", [], "servers"),
    ("servers", [BASE["servers"][0], BASE["servers"][0]], "has the name '.*' twice"),
    (f"{SERVER}.model", "n", "is 'n', not a model of the request. Known models: m"),
    (f"{SERVER}.stage", "half", "is 'half', not a stage of m"),
    (f"{SERVER}.count", 0, "count: is 0, below"),
    (f"{SERVER}.count", 1_000_001, "more than 1000000"),
    (f"{SERVER}.count", 2**53, "more than 1000000"),
    (f"{SERVER}.max_batch", 5, "the largest size of batch_ms, 4"),
    (f"{SERVER}.max_batch", 0, "max_batch: is 0, below"),
    (f"{SERVER}.max_wait_ms", -1.0, "max_wait_ms: is -1.0, below"),
    (f"{SERVER}.batch_ms", {}, "batch_ms"),
    (f"{SERVER}.batch_ms", {"1": 0.0, "4": 1.0}, "0.0"),
    (f"{SERVER}.batch_ms", {"1": -5.0, "4": 1.0}, "-5.0"),
    (f"{SERVER}.batch_ms", {"0": 5.0, "4": 1.0}, "batch_ms"),
    (f"{SERVER}.batch_ms", {"some": 5.0, "4": 1.0}, "batch_ms"),
    (f"{SERVER}.service", {"kind": "lognormal"}, "cv"),
    (f"{SERVER}.service", {"kind": "exponential", "cv": 1.0}, "exponential service has no cv"),
    ("queue", "stack", "queue"),
    ("requests_per_model", 0, "requests_per_model: is 0, below"),
    ("requests_per_model", 10**9, "10000000"),
    ("replications", 10**6, "replications"),
    ("warmup_share", 1.0, "warmup_share: is 1.0, not below 1"),
    ("seed", -1, "seed: is -1, below"),
    ("find", {"percentile": 100}, "percentile: is 100, not below 100"),
    ("find", {"percentile": 0}, "percentile: is 0, not above 0"),
    ("find", {"percentile": 95}, "no model has a slo_ms"),
    ("find", {"quantile": 0.95}, "is not a known field"),
    ("speed", 1, "is not a known field"),
])  # fmt: skip
def test_what_makes_no_sense_is_one_message(path, value, match):
    with pytest.raises(InputFault, match=match):
        simulate(request_of(changed(path, value)))


def test_together_they_are_not_too_much():
    data = changed("requests_per_model", 10_000_000) | {"replications": 1000}
    with pytest.raises(InputFault, match="more than 100000000"):
        simulate(request_of(data))


def test_defaults_are_those_of_the_contract():
    data = changed("requests_per_model", ...)
    request = request_of(data)
    (server,) = request.servers
    assert (server.count, server.max_wait_ms, server.service.kind) == (1, 0.0, "deterministic")
    assert (request.models[0].transfer_ms, request.models[0].slo_ms) == ((), None)
    assert (request.queue, request.warmup_share, request.replications) == ("shared", 0.1, 5)
    assert (request.requests_per_model, request.seed, request.find) == (100_000, 0, None)
    assert '"find"' not in write_text(request) and '"cut_bytes"' not in write_text(request)


def test_an_unstable_model_has_no_times_where_arrivals_are_random():
    outcome = outcome_of(changed(f"{ARRIVALS}.rate_rps", 1000.0))
    (load,) = outcome.models
    assert load.stable is False and load.capacity_rps == pytest.approx(4000 / 14)
    times = (load.response_ms, load.response_ci95_ms, load.wait_ms)
    assert {getattr(time, name) for time in times for name in time.__slots__} == {None}
    assert load.throughput_rps == pytest.approx(4000 / 14, rel=0.01) and load.completed == 10_000
    assert any("grows without limit" in warning for warning in outcome.warnings)


def test_a_trace_has_every_figure_and_one_replication():
    arrivals = {"kind": "trace", "times_s": [0.0] * 50 + [0.001]}
    data = changed(ARRIVALS, arrivals)
    data["models"][0]["slo_ms"] = 100.0
    outcome = outcome_of(data)
    (load,) = outcome.models
    assert load.offered_rps == 50 / 0.001 and load.stable is False and load.completed == 51
    assert load.response_ms.max == pytest.approx(max(responses(data)["m"]))
    assert load.response_ci95_ms.mean is None and load.wait_ms.mean is not None


def test_a_trace_of_one_arrival_has_no_rate():
    outcome = outcome_of(changed(ARRIVALS, {"kind": "trace", "times_s": [3.5]}))
    (load,) = outcome.models
    assert (load.offered_rps, load.stable, load.completed) == (None, None, 1)
    assert load.response_ms.mean == load.response_ms.p99 == 10.0 and load.wait_ms.mean == 0.0
    assert load.throughput_rps == pytest.approx(100.0)
    assert any("no rate" in warning for warning in outcome.warnings)


def test_arrivals_all_at_once_are_not_stable_and_have_no_rate():
    (load,) = outcome_of(changed(ARRIVALS, {"kind": "trace", "times_s": [1.0] * 9})).models
    assert (load.offered_rps, load.stable) == (None, False)
    assert load.response_ms.max == 14.0 + 14.0 + 10.0


def test_falling_batch_times_are_used_as_given_and_said():
    data = changed(f"{SERVER}.batch_ms", {"1": 10.0, "2": 6.0, "4": 14.0})
    data["models"][0]["arrivals"] = {"kind": "trace", "times_s": [0.0, 0.0]}
    outcome = outcome_of(data)
    assert outcome.models[0].response_ms.max == 6.0
    said = " ".join(outcome.warnings)
    assert "a batch of 2 takes less time than one of 1" in said and "interpolated" in said


def test_a_limit_that_nothing_meets_is_told_and_with_find_refused():
    data = changed("models.0.slo_ms", 9.0)
    outcome = outcome_of(data)
    assert outcome.models[0].slo_attainment == 0.0
    assert any("less than 10 ms" in warning for warning in outcome.warnings)
    data["find"] = {"percentile": 95}
    with pytest.raises(InputFault, match="slo_ms: is 9, and no request is answered in less than 10 ms"):
        simulate(request_of(data))


def test_regular_arrivals_are_exact():
    """One every 10 ms, each served in 10 ms: a load of exactly 1 without any wait, and no replication differs."""
    data = changed(ARRIVALS, {"kind": "deterministic", "rate_rps": 100.0})
    data["servers"][0] |= {"max_batch": 1, "batch_ms": {"1": 10.0}}
    (load,) = outcome_of(data).models
    assert (load.stable, load.response_ms.mean, load.wait_ms.mean) == (False, 10.0, 0.0)
    assert (load.response_ci95_ms.p95, load.completed) == (0.0, 10_000)


def test_decimal_times_of_a_trace_are_exact():
    """0.1 + 0.2 is 0.3 here: whoever arrives when a server becomes free joins its batch."""
    data = changed(ARRIVALS, {"kind": "trace", "times_s": [0.0001, 0.0002, 0.0003]})
    data["servers"][0] |= {"max_batch": 2, "batch_ms": {"1": 0.2, "2": 0.7}}
    found = run_model(prepare_model(request_of(data), 0), 0).response_ms
    assert list(found) == [0.2, 0.8, 0.7] == responses(data)["m"]
    assert to_decimal_ticks([0.1, 0.25])[1] == 1000 and to_decimal_ticks([1 / 3]) is None  # type: ignore[index]


def test_a_million_servers_answer():
    for queue in ("shared", "per_server"):
        data = changed(f"{SERVER}.count", 1_000_000) | {"queue": queue, "replications": 1}
        outcome = outcome_of(data)
        assert outcome.models[0].response_ms.max == 10.0
        assert 0 < outcome.servers[0].utilisation < 1e-6


def test_bytes_across_cuts_are_those_of_batches_and_requests():
    data = changed("models.0.stages", ["whole", "next"])
    data["models"][0] |= {"arrivals": {"kind": "trace", "times_s": [0.0, 0.0, 0.0, 0.0, 0.01]}}
    data["models"][0] |= {"cut_bytes": [1000.0], "cut_bytes_per_request": [10.0]}
    data["servers"].append(data["servers"][0] | {"id": "t", "stage": "next"})
    (load,) = outcome_of(data).models
    # Two batches of the first stage; 14 + 14 ms for the first, and the fifth waits for both stages: 38 ms.
    assert load.bytes_across_cuts_per_s == pytest.approx((2 * 1000 + 5 * 10) / 0.038)
    assert load.mean_batch == 2.5


def test_the_same_request_has_the_same_outcome_and_another_seed_another():
    first, again = (outcome_of(BASE).models for _ in range(2))
    assert first == again
    assert outcome_of(BASE | {"seed": 1}).models != first


def test_a_factor_scales_the_same_draws():
    import numpy as np

    for kind in (
        {"kind": "poisson", "rate_rps": 50.0},
        {"kind": "gamma", "rate_rps": 50.0, "cv": 2.0},
        {"kind": "deterministic", "rate_rps": 50.0},
    ):
        arrivals = request_of(changed(ARRIVALS, kind)).models[0].arrivals
        slow, fast = (
            arrival_times_ms(arrivals, 100, np.random.default_rng(1), factor) for factor in (1.0, 2.0)
        )
        assert fast == pytest.approx(slow / 2)
