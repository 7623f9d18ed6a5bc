"""Other ways to divide a model: one GPU a segment, parts of the batch, every layer cut."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.values import PlacementRequest, RooflineThroughput


def division_requests(request: PlacementRequest) -> tuple[tuple[str, PlacementRequest], ...]:
    """Each division by name, on the same fleet with the same other rules, by the exact search.

    Parts of the batch if it has a sequence for each GPU, cut layers if speeds are a roofline's.
    """
    exact = replace(request, solver=replace(request.solver, method="exact"))
    most = request.max_gpus_per_segment
    alone: tuple[str, PlacementRequest] = ("one GPU", replace(exact, max_gpus_per_segment=1, split="equal"))
    requests = [alone]
    if most > 1 and request.model.batch_size >= min(most, len(request.gpus)):
        requests += [
            (f"up to {most}, equal parts", replace(exact, split="equal")),
            (f"up to {most}, in proportion", replace(exact, split="proportional")),
        ]
    if most > 1 and isinstance(request.throughput, RooflineThroughput):
        requests.append((f"up to {most}, layers cut", replace(exact, split="tensor")))
    return tuple(requests)
