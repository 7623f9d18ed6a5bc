"""What the scheduler's allocator strands of full mixes of slices under dynamic MIG: claims by pod and claims by GPU.

A mix is a maximal layout for each GPU, drawn at random, so all of it fits. Its slices arrive as claims of their own, in
random order or largest first, or as one claim for each GPU in random order. The model is that of
`torchsplit_core.deployment.allocator`; what it places is checked against the rules of the catalogue.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence

from torchsplit_core.deployment.allocator import ClusterGpu, SliceClaim, allocate
from torchsplit_core.hardware import catalogue, legal_layouts
from torchsplit_core.hardware.layouts import layout_fault
from torchsplit_core.values import GpuType, PlacedProfile

TYPES = ("A100-80GB", "A30-24GB")
ANYWHERE = frozenset({None})


def stranded(kind: GpuType, gpus: int, claims: Sequence[SliceClaim]) -> int:
    """Slices without a place. Raises AssertionError where what is placed is not legal or not what was asked for."""
    results = allocate([ClusterGpu(None, kind.name, None)] * gpus, claims)
    placed: list[list[PlacedProfile]] = [[] for _ in range(gpus)]
    for claim, result in zip(claims, results, strict=True):
        if result is not None:
            assert tuple(item.profile for item in result[1]) == claim.profiles
            placed[result[0]].extend(result[1])
    for items in placed:
        assert layout_fault(kind, items) is None
    return sum(len(claim.profiles) for claim, result in zip(claims, results, strict=True) if result is None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mixes", type=int, default=1000)
    mixes: int = parser.parse_args().mixes
    print("| type | GPUs | a claim for each slice, random order: mixes, slices stranded | largest first: mixes, slices "
          "| a claim for each GPU: mixes, slices |")  # fmt: skip
    print("|---|---|---|---|---|")
    failed = False
    for name in TYPES:
        kind = catalogue()[name]
        sizes = {profile.name: profile.memory_slices for profile in kind.profiles}
        layouts = legal_layouts(kind, maximal=True)
        for gpus in (1, 4, 8):
            generator = random.Random(gpus)
            counts: list[list[int]] = [[], [], []]
            slices = 0
            for _ in range(mixes):
                mix = [
                    sorted(layout.profiles, key=lambda profile: -sizes[profile])
                    for layout in generator.choices(layouts, k=gpus)
                ]
                profiles = generator.sample([profile for part in mix for profile in part], sum(map(len, mix)))
                slices += len(profiles)
                by_size = sorted(profiles, key=lambda profile: -sizes[profile])
                for number, order in enumerate((profiles, by_size)):
                    counts[number].append(
                        stranded(kind, gpus, [SliceClaim((profile,), ANYWHERE) for profile in order])
                    )
                claims = [SliceClaim(tuple(part), ANYWHERE, name) for part in mix]
                counts[2].append(stranded(kind, gpus, claims))
            cells = [f"{sum(map(bool, row)) / mixes:.1%}, {sum(row) / slices:.1%}" for row in counts]
            print(f"| {name} | {gpus} | {' | '.join(cells)} |")
            failed |= any(counts[2])
    print(f"\n{mixes} mixes a row.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
