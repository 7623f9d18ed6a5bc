"""What the map shows of a plan, as values."""

import pytest

from tests.support.app.fleets import A100, cut, demanding, gpu, plan, tenant
from torchsplit_core.hardware import catalogue
from torchsplit_core.pictures.slice_values import (
    EmptySlots,
    empty_slots,
    gpu_groups,
    ranges,
    slice_table,
    stage_loads,
)


def test_without_demands_the_load_comes_from_the_normalised_throughput():
    loads = stage_loads(plan(gpu("g", A100, cut("7g.80gb", 0, tenant("m", 300.0))), m=4.0))
    assert loads == {("m", "whole"): pytest.approx(0.25)}


def test_each_stage_of_a_cut_model_has_its_own_load():
    stages = [tenant("m", 100.0, stage="a"), tenant("m", 100.0, stage="a"), tenant("m", 400.0, stage="b")]
    outcome = plan(gpu("g", A100, *(cut("1g.10gb", i, one) for i, one in enumerate(stages))))
    loads = stage_loads(outcome, demanding({"m": 100.0}))
    assert loads == {("m", "a"): pytest.approx(0.5), ("m", "b"): pytest.approx(0.25)}


@pytest.mark.parametrize(("slices", "expected"), [
    ([("4g.40gb", 0), ("2g.20gb", 4), ("1g.10gb", 6)], [EmptySlots(7, 1, False)]),
    ([("3g.40gb", 0), ("3g.40gb", 4)], []),
    ([("3g.40gb", 0)], [EmptySlots(4, 4, True)]),
    ([("4g.40gb", 0), ("1g.10gb", 4), ("1g.10gb", 5)], [EmptySlots(6, 2, True)]),
    ([("1g.10gb", i) for i in range(7)], [EmptySlots(7, 1, False)]),
    ([("4g.40gb", 0), ("1g.10gb", 5), ("2g.20gb", 6)][:2], [EmptySlots(4, 1, True), EmptySlots(6, 2, True)]),
    ([], [EmptySlots(0, 8, True)]),
])  # fmt: skip
def test_stranded_slots_are_told_from_those_that_could_be_cut(slices, expected):
    found = empty_slots(catalogue()[A100], tuple(cut(profile, start) for profile, start in slices))
    runs = [EmptySlots(gap.start, gap.slots, gap.usable) for gap in found]
    assert runs == expected


def test_gpus_whose_shares_differ_by_rounding_alone_are_one_card():
    def whole(name, share):
        return gpu(name, A100, cut("7g.80gb", 0, tenant("m", 300.0 * share, share=share)))

    near = plan(whole("gpu0", 1.0), whole("gpu1", 0.5), whole("gpu2", 0.9999999981407619))
    assert [group.ids for group in gpu_groups(near)] == [("gpu0", "gpu2"), ("gpu1",)]
    # Figures that are no numbers are equal to nothing.
    strange = plan(whole("gpu0", float("nan")), whole("gpu1", float("nan")))
    assert [group.ids for group in gpu_groups(strange)] == [("gpu0",), ("gpu1",)]


def test_the_table_has_every_tenant_and_every_free_slice():
    shared = cut("4g.40gb", 0, tenant("a", share=0.25), tenant("b", share=0.5, memory_gib=None))
    rows = slice_table(plan(gpu("g", A100, cut("1g.10gb", 4), shared)), demanding({"a": 50.0, "b": 50.0}))
    assert [(row["slice"], row["model"], row["share"], row["GiB"]) for row in rows] == [
        ("4g.40gb", "a", 0.25, 3.2), ("4g.40gb", "b", 0.5, None), ("1g.10gb", "free", None, None),
    ]  # fmt: skip
    assert [row["load %"] for row in rows] == [50.0, 50.0, None]
    assert len({tuple(row) for row in rows}) == 1


@pytest.mark.parametrize(("ids", "words"), [
    (("gpu0", "gpu1", "gpu2", "gpu5"), "gpu0 to gpu2, gpu5"),
    (("gpu9", "gpu10", "gpu11"), "gpu9 to gpu11"),
    (("n0/gpu08", "n0/gpu09", "n0/gpu10", "n1/gpu11"), "n0/gpu08 to n0/gpu10, n1/gpu11"),
    (("gpu9", "gpu010"), "gpu9, gpu010"),
    (("a", "b", "gpu1"), "a, b, gpu1"),
    ((), ""),
])  # fmt: skip
def test_runs_of_names_are_joined(ids, words):
    assert ranges(ids) == words
