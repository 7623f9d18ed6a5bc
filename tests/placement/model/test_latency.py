"""The seconds of a pass against figures reckoned by hand, in every phase and both units; a wrong one is refused."""

from dataclasses import replace
from typing import Literal

import pytest

from tests.support.placement.requests import tiny
from torchsplit_core.placement import place, violations
from torchsplit_core.placement.model.latency import latency_s, link_tokens_per_s, tokens_per_pass
from torchsplit_core.values import (
    PlacedLink,
    PlacedSegment,
    PlacementModel,
    PlacementRequest,
    RooflineGpu,
    RooflineThroughput,
)

SEGMENTS = tuple(
    PlacedSegment(number, number, (number,), throughput, 16.0)
    for number, throughput in ((1, 400.0), (2, 100.0))
)
PEAKS = {name: RooflineGpu(100.0, 900.0) for name in ("A100", "V100")}


def roofline(phase: Literal["prefill", "decode"]) -> PlacementRequest:
    return tiny(1, throughput=RooflineThroughput(phase, gpus=PEAKS))


@pytest.mark.parametrize(("request_", "tokens"), [
    # 16 sequences of 2,048 tokens: a pass makes all of them, in decode one a sequence.
    (tiny(1), 32_768),
    (roofline("prefill"), 32_768),
    (roofline("decode"), 16),
])  # fmt: skip
def test_every_segment_and_link_takes_its_time_once(request_, tokens):
    assert tokens_per_pass(request_) == tokens
    link = PlacedLink(0, 1, 1000.0)
    assert latency_s(request_, SEGMENTS, (link,)) == pytest.approx(tokens * (1 / 400 + 1 / 100 + 1 / 1000))
    assert latency_s(request_, SEGMENTS[:1], ()) == tokens / 400


def test_in_the_literal_units_a_link_counts_batches():
    # Two batches of 32,768 tokens a second: a batch takes half a second.
    request = tiny(1, units="seed_literal")
    assert link_tokens_per_s(request, 2.0) == 65_536.0
    assert link_tokens_per_s(tiny(1), 2.0) == 2.0
    found = latency_s(request, SEGMENTS, (PlacedLink(0, 1, 2.0),))
    assert found == pytest.approx(32_768 / 400 + 32_768 / 100 + 0.5)


def test_the_published_tiny_case_takes_108_6_seconds():
    # All four layers on the two A100, 301.784 tokens/s, 16 sequences of 2,048 tokens.
    outcome = place(tiny(2))
    assert outcome.latency_s == pytest.approx(16 * 2048 / 301.784)


@pytest.mark.parametrize("units", ["tokens_per_s", "seed_literal"])
@pytest.mark.parametrize("kind", ["linear", "prefill", "decode"])
def test_a_wrong_latency_is_refused(kind, units):
    model = PlacementModel(6, 4096, 11008, 14.0, 2048, 16)
    base = tiny(1) if kind == "linear" else roofline(kind)
    request = replace(base, model=model, units=units)  # type: ignore[arg-type]
    outcome = place(request)
    assert len(outcome.segments) > 1 and outcome.latency_s is not None
    assert not list(violations(request, outcome))
    for wrong in (outcome.latency_s * 1.001, outcome.latency_s * 0.999):
        assert "a pass takes" in "".join(violations(request, replace(outcome, latency_s=wrong)))
