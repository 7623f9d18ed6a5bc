"""The choice among candidates: nothing in it is dominated, nothing undominated is lost, times by batch."""

import random
from dataclasses import replace

import pytest

from tests.support.partitioning.profiles import GRAPH, even_profile, row
from tests.support.seeds import in_blocks
from torchsplit_core.partitioning import verify_outcome
from torchsplit_core.partitioning.pareto import pareto_candidates, undominated
from torchsplit_core.partitioning.provider import PartitionProvider
from torchsplit_core.values import InputFault, NodeProfile, PartitionCandidate, PartitionDevices, Profile


def figures(candidate):
    return candidate.max_load_ms, sum(candidate.cut_bytes), max(candidate.peak_memory_bytes)


def dominates(a, b):
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


@in_blocks("seed", range(30))
def test_the_undominated_are_those_that_none_beats(seed):
    rng = random.Random(seed)
    found = [
        PartitionCandidate(
            ((str(i),), ("z",)), (), rng.randint(1, 5), (rng.randint(0, 4),), (rng.randint(1, 4), 1)
        )
        for i in range(rng.randint(1, 25))
    ]
    kept = {figures(c) for c in undominated(found)}
    assert len(kept) == len(undominated(found))
    assert kept == {figures(c) for c in found if not any(dominates(figures(d), figures(c)) for d in found)}


def test_candidates_of_one_to_four_stages():
    profile = even_profile(GRAPH)
    told = []
    provider = PartitionProvider(GRAPH, profile)
    outcome = pareto_candidates(provider, link_gb_per_s=1e-3, progress=lambda share, line: told.append(share))
    assert set(outcome.outcomes) == {1, 2, 3, 4} and told == sorted(told)
    for count, one in outcome.outcomes.items():
        verify_outcome(provider.request(count, 20, 1e-3), one)
        assert one.status == "optimal"
    every = [c for one in outcome.outcomes.values() for c in one.candidates]
    kept = outcome.candidates
    assert not any(dominates(figures(a), figures(b)) for a in every for b in kept)
    assert min(c.max_load_ms for c in kept) == min(c.max_load_ms for c in every)
    assert len(kept[-1].stages) == 1 and not kept[-1].cut_bytes and len({len(c.stages) for c in kept}) > 1
    one = outcome.combined
    verify_outcome(provider.request(4, 20, 1e-3), one)
    assert one.candidates == kept and one.status == "optimal"
    assert one.devices == PartitionDevices(4, None, 1e-3)


def test_the_latency_decides_where_it_is_asked():
    provider = PartitionProvider(GRAPH, even_profile(GRAPH))
    outcome = pareto_candidates(provider, link_gb_per_s=1e-3, objective="latency")
    first = outcome.candidates[0]
    assert len(first.stages) == 1 and first.latency_ms == pytest.approx(10.0)
    assert outcome.combined.objective == "latency"
    verify_outcome(provider.request(4, 20, 1e-3, objective="latency"), outcome.combined)


def test_devices_of_unequal_speed_are_all_offered_at_once():
    provider = PartitionProvider(GRAPH, even_profile(GRAPH))
    outcome = pareto_candidates(provider, stages=(2,), time_factors=(3.0, 1.0))
    best = outcome.candidates[0]
    assert best.devices in ((0, 1), (1, 0)) and best.max_load_ms < 10.0
    slow = best.devices.index(0)
    assert best.loads_ms[slow] == pytest.approx(3 * best.times_ms[2][slow])


def by_batch():
    """mm operations take half of the time at batch 1 and nearly all at batch 8; batch 4 was not timed."""
    ops = GRAPH.ops
    heavy = [op.id for op in ops if op.id.startswith("mm")]
    light = len(ops) - len(heavy)

    def share(op, part):
        return part / len(heavy) if op.id in heavy else (1 - part) / light

    nodes = tuple(
        NodeProfile(op.id, share(op, 0.5), op.output_bytes, 0, {1: share(op, 0.5), 8: share(op, 0.9)})
        for op in ops
    )
    rows = (row(1, 8.0), row(4, 20.0), row(8, 40.0), row(16, 1.0, "estimated"))
    return Profile("model", "h", {}, rows, nodes)


def test_times_of_stages_by_batch_follow_the_shares_timed_there():
    profile = by_batch()
    outcome = pareto_candidates(PartitionProvider(GRAPH, profile), stages=(2,))
    for candidate in outcome.candidates:
        assert list(candidate.times_ms) == [1, 4, 8]
        for batch, whole in ((1, 8.0), (4, 20.0), (8, 40.0)):
            assert sum(candidate.times_ms[batch]) == pytest.approx(whole)
        for i, stage in enumerate(candidate.stages):
            heavy = sum(name.startswith("mm") for name in stage) / 4
            light = sum(n.id in stage and not n.id.startswith("mm") for n in GRAPH.ops) / 13
            assert candidate.times_ms[1][i] == pytest.approx(8 * (0.5 * heavy + 0.5 * light))
            assert candidate.times_ms[8][i] == pytest.approx(40 * (0.9 * heavy + 0.1 * light))
            assert candidate.times_ms[4][i] == pytest.approx(20 * (0.9 * heavy + 0.1 * light))
            if heavy and light:
                assert 0 < candidate.batch_sensitivity[i] < 1.2


def test_one_batch_size_has_no_sensitivity_and_false_numbers_of_stages_are_refused():
    provider = PartitionProvider(GRAPH, even_profile(GRAPH))
    found = pareto_candidates(provider, stages=(1,)).candidates
    assert [c.batch_sensitivity for c in found] == [(None,)] and found[0].times_ms == {2: (10.0,)}
    for stages in ((), (0, 1), (2, 2)):
        with pytest.raises(InputFault, match="stages"):
            pareto_candidates(provider, stages=stages)


def test_a_memory_limit_holds_for_all_of_them():
    provider = PartitionProvider(GRAPH, even_profile(GRAPH))
    free = pareto_candidates(provider)
    limit = min(max(c.peak_memory_bytes) for c in free.candidates)
    tight = pareto_candidates(provider, memory_bytes=limit)
    assert tight.outcomes[1].status == "infeasible" and not tight.outcomes[1].candidates
    assert tight.candidates and all(max(c.peak_memory_bytes) <= limit for c in tight.candidates)


def test_loads_are_by_the_shares_of_the_batch_they_are_about():
    told = by_batch()
    for rows, batch, heavy in ((told.rows[:1], 1, 0.5), (told.rows[2:3], 8, 0.9)):
        provider = PartitionProvider(GRAPH, replace(told, rows=rows))
        assert provider.row.batch_size == batch
        times = {op.id: provider.time_ms(op.id) for op in GRAPH.ops}
        assert sum(times.values()) == pytest.approx(provider.row.latency_ms)
        share = sum(time for name, time in times.items() if name.startswith("mm")) / provider.row.latency_ms
        assert share == pytest.approx(heavy)
