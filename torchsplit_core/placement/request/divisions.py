"""The other ways to divide a model: one GPU a segment, equal parts, parts in proportion."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.values import PlacementRequest


def division_requests(request: PlacementRequest) -> tuple[tuple[str, PlacementRequest], ...]:
    """Each division by its name, on the same fleet and by the same rules otherwise; the exact search for all."""
    exact = replace(request, solver=replace(request.solver, method="exact"))
    most = request.max_gpus_per_segment
    found = [("one GPU", replace(exact, max_gpus_per_segment=1))]
    if most > 1:
        found += [
            (f"up to {most}, equal parts", replace(exact, split="equal")),
            (f"up to {most}, in proportion", replace(exact, split="proportional")),
        ]
    return tuple(found)
