"""Which exchange of gradients is chosen, from measured times alone."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from torchsplit_core.training.communication.choice import (
    CAPS_MIB,
    ExchangeCandidate,
    ExchangeCosts,
    GradientTimeline,
    TransferTimes,
    assign_buckets,
    choose,
    powersgd_bytes,
    predict_all,
)
from torchsplit_core.values.strategy.communication import CommunicationRequest, Hook
from torchsplit_core.values.units import MIB

SIZES = (4096, 65536, 2**20, 2**23)
MEBI = (512, 512)
"""The shape of a weight whose gradient has 1 MiB."""


def link(bytes_per_s: float, latency_s: float = 0.0, processor: float = 0.0) -> TransferTimes:
    seconds = tuple(latency_s + size / bytes_per_s for size in SIZES)
    return TransferTimes(SIZES, seconds, tuple(processor * value for value in seconds))


def timeline(gradients: int = 20, backward_s: float = 0.2, rest_s: float = 0.1) -> GradientTimeline:
    """Equal gradients that are ready at equal distances."""
    ready = tuple(backward_s * (place + 1) / gradients for place in range(gradients))
    return GradientTimeline((MEBI,) * gradients, ready, backward_s, rest_s)


def costs(bytes_per_s: float, *hooks: Hook, latency_s: float = 0.0) -> ExchangeCosts:
    plain = link(bytes_per_s, latency_s)
    half = link(2 * bytes_per_s, latency_s)
    transfers: dict[Hook, TransferTimes] = {"all_reduce": plain, **dict.fromkeys(hooks, half)}
    return ExchangeCosts(transfers)


def defaults(candidates: list[ExchangeCandidate]) -> ExchangeCandidate:
    (candidate,) = (item for item in candidates if item.hook == "all_reduce" and item.bucket_mib is None)
    return candidate


def test_buckets_are_those_of_ddp() -> None:
    """torch forms the same ones of tensors in this order, with its default and with a cap."""
    torch = pytest.importorskip("torch")
    import torch.distributed as dist

    elements = [100, 300_000, 10, 70_000, 4_000_000, 2, 9_000_000, 5, 262_144, 262_144, 1]
    tensors = [torch.empty(count) for count in elements]
    sizes = [4 * count for count in elements]
    for cap in (None, *CAPS_MIB):
        limits = [2**20, 25 * 2**20] if cap is None else [int(cap * 2**20)]
        expected = dist._compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors))[0]
        assert [list(bucket) for bucket in assign_buckets(sizes, cap)] == expected


def test_one_process_exchanges_nothing() -> None:
    choice = choose(timeline(), costs(1e6), CommunicationRequest(("bf16",)), 1)
    assert (choice.hook, choice.bucket_mib, choice.candidates) == ("ddp", None, ())
    assert "one process" in choice.reason


@pytest.mark.parametrize("lossy", [(), ("bf16", "fp16")])
def test_with_a_link_without_limits_the_defaults_stay_and_nothing_is_compressed(lossy: tuple) -> None:
    choice = choose(timeline(), costs(1e18, *lossy), CommunicationRequest(lossy), 2)
    assert (choice.hook, choice.bucket_mib) == ("all_reduce", None)
    assert choice.candidates[0].step_s == pytest.approx(0.3)
    assert "no other choice saves 5%" in choice.reason


def test_the_predicted_step_never_falls_with_a_slower_link() -> None:
    request = CommunicationRequest(("bf16", "powersgd"))
    before: dict[tuple, float] = {}
    for rate in (1e12, 1e10, 1e9, 3e8, 1e8, 3e7, 1e7, 1e6):
        given = replace(costs(rate, "bf16", latency_s=1e-4), powersgd_s_per_byte=1e-9)
        steps = {
            (item.hook, item.bucket_mib): item.step_s for item in predict_all(timeline(), given, request)
        }
        assert all(steps[name] >= before[name] - 1e-12 for name in before)
        assert not before or min(steps.values()) >= min(before.values()) - 1e-12
        before = steps
    assert len(before) == len({name[0] for name in before}) * len({name[1] for name in before})


def test_the_prediction_is_that_of_exchanges_one_after_another() -> None:
    """Two gradients in two buckets, by hand: 0.01 s/MiB, ready at 0.1 and 0.2 s."""
    given = timeline(2, 0.2, 0.05)
    (candidate,) = predict_all(
        given, costs(MIB / 0.01), CommunicationRequest(hook="all_reduce", bucket_mib=1.0)
    )
    assert (candidate.buckets, candidate.exposed_s) == (2, pytest.approx(0.01))
    assert candidate.step_s == pytest.approx(0.05 + 0.2 + 0.01)
    slow = costs(MIB / 0.3)
    (candidate,) = predict_all(given, slow, CommunicationRequest(hook="all_reduce", bucket_mib=1.0))
    # The second waits for the first: 0.1 + 2 · 0.3.
    assert candidate.step_s == pytest.approx(0.05 + 0.7)
    (candidate,) = predict_all(given, slow, CommunicationRequest(hook="all_reduce", bucket_mib=4.0))
    assert (candidate.buckets, candidate.step_s) == (1, pytest.approx(0.05 + 0.2 + 0.6))


def test_an_exchange_on_the_cores_of_the_backward_pass_delays_it() -> None:
    request = CommunicationRequest(hook="all_reduce", bucket_mib=1.0)
    given = ExchangeCosts({"all_reduce": link(MIB / 0.01, processor=0.5)})
    (on_cores,) = predict_all(timeline(2, 0.2, 0.0), given, request)
    (elsewhere,) = predict_all(timeline(2, 0.2, 0.0), replace(given, on_processor=False), request)
    assert on_cores.step_s == pytest.approx(elsewhere.step_s + 0.005)


def test_smaller_buckets_are_chosen_where_the_exchange_takes_as_long_as_the_backward_pass() -> None:
    choice = choose(timeline(), costs(20 * MIB / 0.2), CommunicationRequest(), 2)
    assert choice.hook == "all_reduce" and choice.bucket_mib is not None and choice.bucket_mib < 25
    default = defaults(list(choice.candidates))
    chosen = next(item for item in choice.candidates if item.bucket_mib == choice.bucket_mib)
    assert default.step_s / chosen.step_s > 1.3
    assert "compression was not allowed" in choice.reason and "by DDP's defaults" in choice.reason


def test_a_high_latency_makes_larger_buckets() -> None:
    def size(latency_s: float) -> int:
        choice = choose(timeline(), costs(20 * MIB / 0.2, latency_s=latency_s), CommunicationRequest(), 2)
        return next(
            item.buckets
            for item in choice.candidates
            if (item.hook, item.bucket_mib) == (choice.hook, choice.bucket_mib)
        )

    counts = [size(latency_s) for latency_s in (0.0, 0.005, 0.02, 0.1)]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1]


def test_the_choice_is_the_best_of_all_hooks_and_caps() -> None:
    """Against every combination predicted alone."""
    given = costs(5e7, "bf16", latency_s=2e-3)
    request = CommunicationRequest(("bf16",))
    choice = choose(timeline(), given, request, 4)
    alone = [
        predict_all(timeline(), given, CommunicationRequest(hook=hook, bucket_mib=cap))[0].step_s
        for hook, cap in itertools.product(("all_reduce", "bf16"), CAPS_MIB)
    ]
    chosen = next(
        item for item in choice.candidates if (item.hook, item.bucket_mib) == (choice.hook, choice.bucket_mib)
    )
    assert chosen.step_s <= min(alone) * 1.01
    assert choice.candidates[0].step_s == min(item.step_s for item in choice.candidates) <= min(alone)


def test_compression_is_taken_only_where_it_is_allowed_and_saves_enough() -> None:
    slow = costs(1e7, "bf16")
    assert choose(timeline(), slow, CommunicationRequest(("bf16",)), 2).hook == "bf16"
    # Nothing but the plain one is measured without permission.
    assert choose(timeline(), costs(1e7), CommunicationRequest(), 2).hook == "all_reduce"
    # A backward pass that hides nearly all of it: half the bytes save less than a twentieth of the step.
    assert choose(timeline(), costs(2e9, "bf16"), CommunicationRequest(("bf16",)), 2).hook == "all_reduce"


def test_the_hierarchical_exchange_is_taken_where_it_was_measured_to_be_faster() -> None:
    choice = choose(timeline(), costs(1e8, "hierarchical"), CommunicationRequest(), 4)
    assert choice.hook == "hierarchical"


def test_fixed_fields_are_kept() -> None:
    given = costs(1e7, "bf16")
    choice = choose(timeline(), given, CommunicationRequest(hook="all_reduce"), 2)
    assert choice.hook == "all_reduce" and {item.hook for item in choice.candidates} == {"all_reduce"}
    choice = choose(timeline(), given, CommunicationRequest(("bf16",), bucket_mib=2.0), 2)
    assert {item.bucket_mib for item in choice.candidates} == {2.0} and "fixes bucket_mib" in choice.reason


def test_powersgd_sends_two_thin_matrices_for_a_wide_one() -> None:
    assert powersgd_bytes((512, 256), 2) == (4 * 512 * 2, 4 * 256 * 2)
    assert powersgd_bytes((512, 16, 4, 4), 1) == (4 * 512, 4 * 256)
    # Vectors, and matrices that it would not halve, go whole.
    assert powersgd_bytes((512,), 1) is None and powersgd_bytes((), 1) is None
    assert powersgd_bytes((4, 4), 1) is None and powersgd_bytes((8, 8), 4) is None
    given = replace(costs(1e7), powersgd_s_per_byte=1e-10)
    choice = choose(timeline(), given, CommunicationRequest(("powersgd",)), 2)
    chosen = next(item for item in choice.candidates if item.hook == "powersgd")
    assert choice.hook == "powersgd" and chosen.sent_bytes == 20 * 4 * 1024


def test_times_between_and_beyond_the_measured_sizes() -> None:
    times = TransferTimes((100, 200, 400), (1.0, 2.0, 6.0), (0.5, 9.0, 9.0))
    assert [times.seconds_of(size) for size in (0, 100, 150, 300, 800)] == [1.0, 1.0, 1.5, 4.0, 14.0]
    assert times.processor_of(200) == 2.0, "no more than the whole"
    assert TransferTimes((100,), (1.0,), (0.0,)).seconds_of(300) == 3.0
    noisy = TransferTimes((100, 200, 400), (3.0, 2.0, 4.0), (0.0, 0.0, 0.0))
    assert [noisy.seconds_of(size) for size in (100, 200, 400, 600)] == [3.0, 3.0, 4.0, 5.0]
