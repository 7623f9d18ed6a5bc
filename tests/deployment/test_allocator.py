"""The model of the scheduler's allocator against a plain search of published devices, and what it says of plans."""

import itertools
import random

import pytest

from tests.support.deployment.cluster import Node, plain_claim, published
from tests.support.deployment.helpers import plan_of, planned_gpu
from torchsplit_core.deployment.allocator import (
    ClusterGpu,
    SliceClaim,
    allocate,
    forecast_cluster,
    placed_plan,
)
from torchsplit_core.deployment.hosts import group_by_host
from torchsplit_core.hardware import catalogue, legal_layouts
from torchsplit_core.values import PlacedProfile

ANYWHERE = frozenset({None})
MIXED_STARTS = [("4g.40gb", 0, "a"), ("2g.20gb", 4, "b"), ("1g.10gb", 6, "c")]


def dynamic(gpu_type: str, count: int) -> list[ClusterGpu]:
    return [ClusterGpu(None, gpu_type, None)] * count


def largest_first(gpu_type: str, profiles: tuple[str, ...]) -> tuple[str, ...]:
    kind = catalogue()[gpu_type]
    return tuple(sorted(profiles, key=lambda name: -kind.profile(name).memory_slices))


@pytest.mark.parametrize("seed", range(12))
def test_claims_of_single_slices_get_what_a_plain_search_gives_them(seed):
    generator = random.Random(seed)
    gpu_type, count = generator.choice(["A100-80GB", "A30-24GB"]), generator.randint(1, 3)
    layouts = legal_layouts(catalogue()[gpu_type], maximal=True)
    wanted = [name for _ in range(count) for name in generator.choice(layouts).profiles]
    generator.shuffle(wanted)
    devices = [device for index in range(count) for device in published(gpu_type, "", index)]
    node = Node(devices, {("", index): gpu_type for index in range(count)})
    expected = [node.allocate(plain_claim(profile)) for profile in wanted]
    results = allocate(dynamic(gpu_type, count), [SliceClaim((profile,), ANYWHERE) for profile in wanted])
    assert [result and (result[0], result[1][0].start) for result in results] == [
        devices and (devices[0].gpu[1], int(devices[0].order[2].rpartition("-")[2])) for devices in expected
    ]


def test_the_lowest_start_that_is_taken_first_may_be_the_only_one_of_a_larger_slice():
    small_first = [SliceClaim((profile,), ANYWHERE) for profile in ("1g.10gb", "4g.40gb", "2g.20gb")]
    first, second, third = allocate(dynamic("A100-80GB", 1), small_first)
    assert first == (0, (PlacedProfile("1g.10gb", 0),)) and second is None and third is not None
    (together,) = allocate(
        dynamic("A100-80GB", 1), [SliceClaim(("1g.10gb", "4g.40gb", "2g.20gb"), ANYWHERE, "A100-80GB")]
    )
    assert together is not None
    assert {(item.profile, item.start) for item in together[1]} == {
        ("1g.10gb", 6), ("4g.40gb", 0), ("2g.20gb", 4),
    }  # fmt: skip


@pytest.mark.parametrize("gpu_type", ["A100-80GB", "A30-24GB", "RTX-PRO-6000-Blackwell-96GB"])
def test_every_layout_lands_as_one_claim_on_an_empty_gpu(gpu_type):
    for layout in legal_layouts(catalogue()[gpu_type]):
        if layout.placed:
            claim = SliceClaim(largest_first(gpu_type, layout.profiles), ANYWHERE, gpu_type)
            ((index, placed),) = allocate(dynamic(gpu_type, 1), [claim])
            assert index == 0 and sorted(item.profile for item in placed) == list(layout.profiles)


def test_claims_of_gpus_land_in_every_order_beside_each_other():
    generator = random.Random(3)
    layouts = [layout for layout in legal_layouts(catalogue()["A100-80GB"]) if layout.placed]
    for _ in range(30):
        mix = generator.sample(layouts, 3)
        claims = [
            SliceClaim(largest_first("A100-80GB", layout.profiles), ANYWHERE, "A100-80GB") for layout in mix
        ]
        for order in itertools.permutations(claims):
            assert None not in allocate(dynamic("A100-80GB", 3), order)


def test_a_claim_stays_on_its_hosts_and_type():
    fleet = [ClusterGpu("a", "A100-80GB", None), ClusterGpu("b", "H100-SXM5-80GB", None)]
    b, h100 = frozenset({"b"}), frozenset({"a", "b"})
    assert allocate(fleet, [SliceClaim(("1g.10gb",), b)]) == ((1, (PlacedProfile("1g.10gb", 0),)),)
    assert allocate(fleet, [SliceClaim(("1g.10gb",), h100, "H100-SXM5-80GB")]) == (
        (1, (PlacedProfile("1g.10gb", 0),)),
    )
    assert allocate(fleet, [SliceClaim(("1g.10gb",), frozenset({"c"}))]) == (None,)


def test_a_plan_is_forecast_cut_beforehand_and_under_dynamic_mig():
    plan = plan_of(*(planned_gpu(f"n/gpu{index}", "A100-80GB", MIXED_STARTS) for index in range(2)))
    beforehand, by_driver = forecast_cluster(group_by_host(plan))
    assert (beforehand.dynamic, by_driver.dynamic) == (False, True)
    assert str(beforehand.by_pod) == str(beforehand.by_gpu) == str(by_driver.by_gpu) == "none of 6"
    assert 0 < by_driver.by_pod.most < 6 and 0 < by_driver.by_pod.orders_with_any <= by_driver.by_pod.orders
    assert forecast_cluster(group_by_host(plan)) == (beforehand, by_driver)


def test_free_slices_are_claimed_but_are_no_pods():
    plan = plan_of(
        planned_gpu("gpu0", "A100-80GB", [("4g.40gb", 0, None), ("3g.40gb", 4, "a")]),
        planned_gpu("gpu1", "A100-80GB", [("7g.80gb", 0, None)]),
        planned_gpu("cpu0", "CPU-4c", [("4c", 0, "b")]),
    )
    for forecast in forecast_cluster(group_by_host(plan)):
        assert str(forecast.by_pod) == str(forecast.by_gpu) == "none of 1"
    cores = plan_of(planned_gpu("cpu0", "CPU-4c", [("4c", 0, "b")]))
    assert forecast_cluster(group_by_host(cores)) == ()


def test_a_claim_may_take_the_slices_of_a_gpu_that_has_them_and_more():
    ones = [("1g.10gb", start, "a") for start in range(7)]
    plan = plan_of(planned_gpu("gpu0", "A100-80GB", ones), planned_gpu("gpu1", "A100-80GB", ones[:2]))
    beforehand, by_driver = forecast_cluster(group_by_host(plan))
    assert (beforehand.by_gpu.fewest, beforehand.by_gpu.most) == (0, 7)
    assert beforehand.by_pod.most == by_driver.by_gpu.most == 0


def test_a_type_that_shares_its_profiles_takes_the_slices_of_a_pod_that_names_no_type():
    plan = plan_of(
        planned_gpu("n/gpu0", "A100-40GB", [("7g.40gb", 0, "a")]),
        planned_gpu("n/gpu1", "H100-SXM5-80GB", [("1g.10gb", start, "b") for start in range(7)]),
    )
    _, by_driver = forecast_cluster(group_by_host(plan))
    assert by_driver.by_pod.most > 0 and by_driver.by_gpu.most == 0


def test_the_worst_order_is_a_plan_that_holds_what_landed_and_names_what_did_not():
    plan = plan_of(
        *(planned_gpu(f"n/gpu{index}", "A100-80GB", MIXED_STARTS) for index in range(5)),
        planned_gpu("n/gpu5", "A100-80GB", ()),
        planned_gpu("n/cpu0", "CPU-4c", [("4c", 0, "d")]),
    )
    beforehand, by_driver = forecast_cluster(group_by_host(plan))
    placed, stranded = placed_plan(plan, by_driver)
    assert len(stranded) == by_driver.by_pod.most > 0
    group_by_host(placed)  # refuses what no GPU can hold
    slices = [item for gpu in placed.gpus[:5] for item in gpu.slices]
    assert sorted(item.profile for item in (*slices, *stranded)) == sorted(
        item.profile for gpu in plan.gpus[:5] for item in gpu.slices
    )
    assert placed.gpus[5:] == plan.gpus[5:]
    assert placed_plan(plan, beforehand)[1] == ()
