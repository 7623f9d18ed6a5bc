"""A model of how the scheduler of Kubernetes assigns MIG slices to claims (structured parameters of DRA); no cluster.

- The driver publishes the devices of a node by PCI id, then by name. Slices that were cut beforehand are devices. With
  dynamic MIG each legal position of each profile is one, and counters keep those from overlapping that are taken. No
  attribute gives the start of a slice, so a request can only name its profile.
- The allocator goes through the devices in that order and takes the first that matches and fits. It tries others only
  while the same claim is incomplete; what an earlier claim has taken stays.

Assumed: GPUs are numbered by PCI id (`nvidia-smi -L`), hosts are tried in the plan's order, nothing else runs on the
plan's GPUs, a GPU that is left whole has MIG off, and the catalogue's rules stand for the driver's counters. Under
dynamic MIG a claim for a whole GPU's layout always lands: the other claims stand on one GPU each, so one GPU of the
type is empty.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from torchsplit_core.deployment.hosts import Host, HostGpu
from torchsplit_core.hardware import gpu_type
from torchsplit_core.hardware.layouts import layout_fault
from torchsplit_core.values import PlacedProfile, PlannedSlice, PlanOutcome, point_type

Positions = tuple[PlacedProfile, ...]
"""Slices at their starts."""
Allocation = tuple[int, Positions]
"""The GPU of a claim, by its index, and its slices there."""

MOST_ORDERS = 100
_MOST_PODS = 20_000
"""Pods over all orders of a forecast, so that it takes a fraction of a second on large fleets."""


@dataclass(frozen=True, slots=True)
class ClusterGpu:
    """A GPU that the driver publishes. `cut`: the slices that it has; None: dynamic MIG makes them when asked."""

    host: str | None
    type: str
    cut: Positions | None


@dataclass(frozen=True, slots=True)
class SliceClaim:
    """Slices that have to be on one GPU, by profile, tried in this order; of that type on these hosts.

    `type` None: any, since types share names of profiles.
    """

    profiles: tuple[str, ...]
    hosts: frozenset[str | None]
    type: str | None = None


@dataclass(frozen=True, slots=True)
class StrandedForecast:
    """How many of `pods` find no slice, over random orders of arrival: fewest, most, and in how many orders any."""

    pods: int
    orders: int
    fewest: int
    most: int
    orders_with_any: int

    def __str__(self) -> str:
        if self.most == 0:
            return f"none of {self.pods}"
        if self.fewest == self.most:
            return f"{self.most} of {self.pods}, in every order"
        orders = f"{self.orders_with_any} of {self.orders} orders"
        return f"{self.fewest} to {self.most} of {self.pods}, some in {orders}"


@dataclass(frozen=True, slots=True)
class ClusterForecast:
    """Of one way to make slices (`dynamic`): with a claim for each pod, and with a claim for each GPU.

    `worst`: where the pods land in the order in which most strand with a claim each: GPU and start of the plan's slice,
    and those of the one it gets, None for none.
    """

    dynamic: bool
    by_pod: StrandedForecast
    by_gpu: StrandedForecast
    worst: Mapping[tuple[str, int], tuple[str, int] | None]

    @property
    def way(self) -> str:
        """How slices are made, in words."""
        return "dynamic MIG (alpha, off by default)" if self.dynamic else "slices cut beforehand"


@lru_cache(maxsize=16)
def forecast_cluster(hosts: tuple[Host, ...]) -> tuple[ClusterForecast, ...]:
    """What a cluster with these GPUs would strand of the plan: cut beforehand, and by dynamic MIG. () without GPUs.

    A pod is a slice with tenants. Claims by GPU hold the free slices too.
    """
    used = [(host, gpu) for host in hosts for gpu in host.gpus if not gpu.is_cpu]
    pods = [(gpu, item) for _, gpu in used for item in gpu.slices if item.tenants]
    if not pods:
        return ()
    hosts_of: dict[str, set[str | None]] = {}
    for host, gpu in used:
        hosts_of.setdefault(gpu.type, set()).add(host.name)
    by_pod = [(SliceClaim((item.profile,), frozenset(hosts_of[gpu.type])), 1) for gpu, item in pods]
    by_gpu = [
        (SliceClaim(tuple(item.profile for item in gpu.slices), frozenset({host.name}), gpu.type), count)
        for host, gpu in used
        if (count := sum(bool(item.tenants) for item in gpu.slices))
    ]
    forecasts = []
    for dynamic in (False, True):
        fleet = [_published(host, gpu, dynamic=dynamic) for host, gpu in used]
        single, results = _forecast(fleet, by_pod)
        worst = {
            (gpu.id, item.start): None if result is None else (used[result[0]][1].id, result[1][0].start)
            for (gpu, item), result in zip(pods, results, strict=True)
        }
        forecasts.append(ClusterForecast(dynamic, single, _forecast(fleet, by_gpu)[0], worst))
    return tuple(forecasts)


def placed_plan(plan: PlanOutcome, forecast: ClusterForecast) -> tuple[PlanOutcome, tuple[PlannedSlice, ...]]:
    """The plan with its pods where `worst` puts them, and the slices of those without a place.

    Free slices, which no pod asks for, are gone. Its figures are still the plan's.
    """
    landed: dict[str, list[PlannedSlice]] = {}
    stranded = []
    for gpu in plan.gpus:
        for item in gpu.slices:
            place = forecast.worst.get((gpu.id, item.start))
            if place is not None:
                landed.setdefault(place[0], []).append(replace(item, start=place[1]))
            elif (gpu.id, item.start) in forecast.worst:
                stranded.append(item)
    gpus = []
    for gpu in plan.gpus:
        slices = tuple(sorted(landed.get(gpu.id, ()), key=lambda item: item.start))
        gpus.append(
            gpu if point_type(gpu.type) != gpu.type else replace(gpu, used=bool(slices), slices=slices)
        )
    return replace(plan, gpus=tuple(gpus)), tuple(stranded)


def allocate(gpus: Sequence[ClusterGpu], claims: Sequence[SliceClaim]) -> tuple[Allocation | None, ...]:
    """The GPU (its index) and slices that each claim gets, in order of arrival; None for a claim that strands."""
    taken: list[Positions] = [()] * len(gpus)
    # What is taken stays, so a GPU that is too full for a claim is so for equal claims after it.
    first_gpu: dict[SliceClaim, int] = {}
    results: list[Allocation | None] = []
    for claim in claims:
        result = None
        for index in range(first_gpu.get(claim, 0), len(gpus)):
            gpu = gpus[index]
            if gpu.host in claim.hosts and claim.type in (None, gpu.type):
                placed = _first_fit(gpu.type, gpu.cut, taken[index], claim.profiles)
                if placed is not None:
                    taken[index] = tuple(sorted((*taken[index], *placed), key=lambda item: item.start))
                    result = (index, placed)
                    break
        first_gpu[claim] = len(gpus) if result is None else result[0]
        results.append(result)
    return tuple(results)


def _forecast(
    gpus: Sequence[ClusterGpu], claims: Sequence[tuple[SliceClaim, int]]
) -> tuple[StrandedForecast, list[Allocation | None]]:
    """Of claims with their numbers of pods; and what each gets in the order that strands most."""
    pods = sum(count for _, count in claims)
    orders = max(1, min(MOST_ORDERS, _MOST_PODS // pods))
    generator = random.Random(0)
    stranded = []
    worst: list[Allocation | None] = []
    for _ in range(orders):
        order = generator.sample(range(len(claims)), len(claims))
        results = dict(zip(order, allocate(gpus, [claims[number][0] for number in order]), strict=True))
        stranded.append(sum(count for number, (_, count) in enumerate(claims) if results[number] is None))
        if stranded[-1] > max(stranded[:-1], default=-1):
            worst = [results[number] for number in range(len(claims))]
    return StrandedForecast(pods, orders, min(stranded), max(stranded), sum(map(bool, stranded))), worst


def _published(host: Host, gpu: HostGpu, *, dynamic: bool) -> ClusterGpu:
    placed = tuple(PlacedProfile(item.profile, item.start) for item in gpu.slices)
    return ClusterGpu(host.name, gpu.type, None if dynamic and not gpu.is_unpartitioned else placed)


@cache
def _devices(type_name: str, cut: Positions | None) -> Mapping[str, Positions]:
    """The published slices of each profile in the order of their names, which end with the start."""
    placed = cut
    if placed is None:
        placed = tuple(
            PlacedProfile(profile.name, start)
            for profile in gpu_type(type_name).profiles
            for start in profile.placement_starts
        )
    by_profile: dict[str, Positions] = {}
    for item in sorted(placed, key=lambda item: str(item.start)):
        by_profile[item.profile] = (*by_profile.get(item.profile, ()), item)
    return by_profile


@cache
def _first_fit(
    type_name: str, cut: Positions | None, taken: Positions, profiles: tuple[str, ...]
) -> Positions | None:
    """Where a claim's requests land beside what is taken: the first device of each, then the others, depth first."""
    kind = gpu_type(type_name)
    devices = _devices(type_name, cut)

    def search(chosen: Positions, first: int) -> Positions | None:
        if len(chosen) == len(profiles):
            return chosen
        profile = profiles[len(chosen)]
        # Equal requests in a row take devices in order: another permutation is the same choice.
        following = len(chosen) + 1 < len(profiles) and profiles[len(chosen) + 1] == profile
        candidates = devices.get(profile, ())
        for number in range(first, len(candidates)):
            if layout_fault(kind, (*taken, *chosen, candidates[number])) is None:
                placed = search((*chosen, candidates[number]), number + 1 if following else 0)
                if placed is not None:
                    return placed
        return None

    return search((), 0)
