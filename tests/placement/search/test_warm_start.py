"""An earlier outcome as the start of a placement, and what a search says on its way."""

from dataclasses import replace

import pytest

from tests.support.placement.requests import COEFFICIENTS
from torchsplit_core import workflow
from torchsplit_core.placement import place
from torchsplit_core.placement.model.instance import SearchResult
from torchsplit_core.placement.search.warm_start import warm_start_from
from torchsplit_core.values import (
    LinearThroughput,
    PlacedSegment,
    PlacementGpu,
    PlacementModel,
    PlacementOutcome,
    PlacementRequest,
)


def fleet(**changes: object) -> PlacementRequest:
    """Twelve GPUs of three types in nodes of four: too many for a look at every pipeline."""
    types = [("H100", "A10", "T4")[number // 4] for number in range(12)]
    memory = {"H100": 16.0, "A10": 8.0, "T4": 5.0}
    links = tuple(tuple(300.0 if i // 4 == j // 4 else 2.0 for j in range(12)) for i in range(12))
    request = PlacementRequest(
        PlacementModel(16, 4096, 11008, 1.0, 2048, 32),
        tuple(PlacementGpu(f"gpu{number}", name, memory[name]) for number, name in enumerate(types)),
        LinearThroughput(COEFFICIENTS), links, max_gpus_per_segment=2, communication_efficiency=0.85,
    )  # fmt: skip
    return replace(request, **changes)  # type: ignore[arg-type]


def outcome(*segments: tuple[int, int, tuple[str, ...]]) -> PlacementOutcome:
    placed = tuple(PlacedSegment(start, end, gpus, 1.0, 1.0) for start, end, gpus in segments)
    return PlacementOutcome("feasible", 1.0, None, None, placed)


def without_statistics(found: PlacementOutcome) -> PlacementOutcome:
    return replace(found, statistics={})


def test_a_start_that_is_the_best_is_confirmed():
    told = []
    best = place(fleet())
    again = place(fleet(), warm_start=best, progress=lambda share, text: told.append(text))
    assert best.status == "optimal" and best.throughput
    assert without_statistics(again) == without_statistics(best)
    assert told[0].startswith(f"best so far {best.throughput:.4g} tokens/s")


@pytest.mark.parametrize("change", ["gpu", "layers", "memory", "segments"])
def test_a_start_that_no_longer_fits_is_ignored(change):
    request = fleet()
    before = place(request)
    used = before.segments[0].gpu_ids[0]
    left = [number for number, gpu in enumerate(request.gpus) if gpu.id != used]
    changed = {
        "gpu": replace(
            request,
            gpus=tuple(request.gpus[number] for number in left),
            bandwidth_gib_per_s=tuple(tuple(request.bandwidth_gib_per_s[i][j] for j in left) for i in left),
        ),
        "layers": replace(request, model=replace(request.model, layers=15)),
        "memory": replace(request, gpus=tuple(replace(gpu, memory_gib=7.0) for gpu in request.gpus)),
        "segments": replace(request, max_gpus_per_segment=1),
    }[change]
    plain, warm = place(changed), workflow.place(changed, warm_start=before)
    assert plain.status == "optimal" and plain.throughput != before.throughput
    assert without_statistics(warm) == without_statistics(plain)


def test_a_start_is_read_by_the_ids_of_its_gpus():
    turned = replace(fleet(), gpus=fleet().gpus[::-1])
    found = warm_start_from(turned, outcome((1, 10, ("gpu0", "gpu1")), (11, 16, ("gpu5",))))
    assert found == SearchResult(0.0, float("inf"), False, ((10, (10, 11)), (6, (6,))), {})
    assert warm_start_from(turned, outcome((1, 16, ("gpu12",)))) is None
    assert warm_start_from(turned, outcome((1, 17, ("gpu0",)))) is None
    assert warm_start_from(turned, PlacementOutcome("timeout", None, None, None)) is None


@pytest.mark.parametrize(("units", "unit"), [("tokens_per_s", " tokens/s"), ("seed_literal", "")])
def test_what_is_told_has_its_unit(units, unit):
    told = []
    place(fleet(units=units), progress=lambda share, text: told.append(text))
    assert told
    for text in told:
        bound = text.split("none is above ")[1]
        assert bound.replace(",", "").replace(".", "").removesuffix(unit).isdigit(), text
        assert bound.endswith(unit)
    assert any("best so far" in text and f"{unit}, none" in text for text in told)
