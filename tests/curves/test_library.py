"""On the measured library: errors, honest intervals, flags, advice."""

from functools import cache

import numpy as np
import pytest

from tests.support.curves.library import library, query_of, rows
from tests.support.seeds import repeated
from torchsplit_core.curves import Estimate, Sample, advice, estimate, outliers
from torchsplit_core.values import InputFault

pytestmark = pytest.mark.slow

Pairs = list[tuple[Sample, Estimate]]


def answers(measured: list[Sample], held_out: list[Sample]) -> Pairs:
    estimated = estimate(measured, [query_of(sample) for sample in held_out])
    assert all(one.basis == "estimated" for one in estimated)
    return list(zip(held_out, estimated, strict=True))


def errors(pairs: Pairs) -> np.ndarray:
    return np.array([abs(found.throughput_rps / sample.throughput_rps - 1) for sample, found in pairs])


def held(pairs: Pairs) -> float:
    return float(
        np.mean([found.low_rps <= sample.throughput_rps <= found.high_rps for sample, found in pairs])
    )


def curve_left_out() -> Pairs:
    """Every second point of each batch curve; the benchmark has them all."""
    pairs = []
    for model in library():
        for size in (1, 2, 3, 4, 7):
            curve = rows(model, (size,))
            for sample in curve[::2]:
                pairs += answers([other for other in curve if other is not sample], [sample])
    return pairs


@cache
def slices_between() -> Pairs:
    return [pair for model in library() for pair in answers(rows(model, (1, 7)), rows(model, (2, 3, 4)))]


def random_rows() -> Pairs:
    pairs = []
    choice = np.random.default_rng(5)
    for model in library():
        samples = rows(model, processes=None)
        known = set(choice.choice(len(samples), len(samples) // 2, replace=False).tolist())
        pairs += answers(
            [sample for place, sample in enumerate(samples) if place in known],
            [sample for place, sample in enumerate(samples) if place not in known],
        )
    return pairs


@repeated(("pairs_of", "count", "median", "most"), [
    (slices_between, None, 0.03, 0.12), (random_rows, None, 0.03, None), (curve_left_out, 225, 0.025, 0.1),
], kept=2)  # fmt: skip
def test_what_is_left_out_is_estimated_nearly_and_held_as_often_as_promised(pairs_of, count, median, most):
    pairs = pairs_of()
    assert count in (None, len(pairs)) and np.median(errors(pairs)) <= median
    assert most is None or np.quantile(errors(pairs), 0.9) <= most
    assert 0.85 <= held(pairs) <= 0.95


def test_one_slice_leaves_the_others_wide_but_honest():
    pairs = [
        pair
        for model in library()
        for size in (1, 2, 3, 4, 7)
        for pair in answers(rows(model, (size,)), rows(model, tuple({1, 2, 3, 4, 7} - {size})))
    ]
    assert 0.85 <= held(pairs) <= 0.95
    far = [found.high_rps / found.low_rps for sample, found in pairs]
    near = [found.high_rps / found.low_rps for _, found in slices_between()]
    assert np.median(far) - 1 > 1.5 * (np.median(near) - 1)


def test_implausible_rows_are_flagged_and_few_others():
    every = [sample for samples in library().values() for sample in samples]
    found = outliers(every)
    places = {
        (one.sample.model, one.sample.size, one.sample.batch_size, one.sample.processes): one for one in found
    }
    jump = places["densenet169", 3, 128, 1]
    assert jump.sample.throughput_rps > 1.4 * jump.expected_rps
    assert jump.deviation > 3
    assert jump.low_rps < jump.expected_rps < jump.high_rps < jump.sample.throughput_rps
    assert len(found) < 0.015 * len(every)


def test_clean_rows_are_not_flagged():
    assert outliers(rows("resnet101")) == ()
    assert outliers(rows("resnet101")[:3]) == ()


@pytest.mark.parametrize("model", ["resnet50", "bert", "vgg19"])
def test_advice_from_the_whole_gpu_asks_for_a_small_slice(model):
    advised = advice(rows(model, (7,)), (1, 2, 3, 4, 7))
    now = {one.size: one.width_now for one in advised.uncertainty}
    assert max(now, key=lambda size: now[size]) == 1
    assert advised.size in (1, 2)
    assert all(one.width_after <= one.width_now for one in advised.uncertainty)
    smallest = advised.uncertainty[0]
    assert smallest.width_after - 1 < 0.5 * (smallest.width_now - 1)


def test_following_advice_narrows_about_as_foretold():
    measured = rows("resnet50", (7,))
    advised = advice(measured, (1, 2, 3, 4, 7))
    (more,) = [row for row in rows("resnet50", (advised.size,)) if row.batch_size == advised.batch_size]
    then = advice([*measured, more], (1, 2, 3, 4, 7))
    assert then.uncertainty[0].width_now == pytest.approx(advised.uncertainty[0].width_after, rel=0.25)


def test_advice_avoids_what_ran_out_of_memory():
    measured = [*rows("resnet50", (7,)), Sample("resnet50", 1, 2, 1, 0.0)]
    advised = advice(measured, (1, 2))
    assert (advised.size, advised.batch_size) == (1, 1) or advised.size == 2


def test_advice_says_what_it_needs():
    with pytest.raises(InputFault, match="one model"):
        advice([*rows("bert"), *rows("vgg19")], (1,))
    with pytest.raises(InputFault, match="size"):
        advice(rows("bert"), ())
