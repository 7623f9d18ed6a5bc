"""Fleets made by hand, and their cards as parsed SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

from torchsplit_core.pictures.colours import model_colours
from torchsplit_core.pictures.slice_map import fleet_svg
from torchsplit_core.values import (
    ObjectiveValue,
    PlanModel,
    PlannedGpu,
    PlannedModel,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    Tenant,
)

A100 = "A100-80GB"


def tenant(model: str, rps: float = 100.0, **changes: Any) -> Tenant:
    return replace(Tenant(model, "whole", "whole", 1.0, 8, 1, rps, 3.2), **changes)


def cut(profile: str, start: int, *tenants: Tenant) -> PlannedSlice:
    return PlannedSlice(profile, start, tenants)


def gpu(name: str, kind: str, *slices: PlannedSlice) -> PlannedGpu:
    return PlannedGpu(name, kind, bool(slices), slices)


def plan(*gpus: PlannedGpu, **normalised: float) -> PlanOutcome:
    given: dict[str, float] = {}
    for one in gpus:
        for item in one.slices:
            for who in item.tenants:
                given[who.model] = given.get(who.model, 0.0) + who.throughput_rps
    models = tuple(
        PlannedModel(name, "whole", rps, normalised.get(name, 2.0), 50.0) for name, rps in given.items()
    )
    goal, spent = ObjectiveValue("leximin", 1.0), PlanStatistics(0.1, 0.1, 0.1, "highs")
    return PlanOutcome("ab" * 32, "optimal", goal, gpus, models, spent)


def demanding(demands_rps: Mapping[str, float]) -> PlanRequest:
    """A request that says these demands, and nothing else."""
    return PlanRequest((), tuple(PlanModel(name, (), demand_rps=rate) for name, rate in demands_rps.items()))


MIXED = plan(
    gpu(
        "gpu0", A100, cut("4g.40gb", 0, tenant("clip", 1480.0)), cut("2g.20gb", 4, tenant("bert")),
        cut("1g.10gb", 6),
    ),
    gpu(
        "gpu1",
        "RTX-PRO-6000-Blackwell-96GB",
        cut("2g.48gb", 0, tenant("bert")),
        cut("1g.24gb", 9, tenant("ocr")),
    ),
)  # fmt: skip


def drawn(outcome: PlanOutcome, **arguments: Any) -> list[ElementTree.Element]:
    """The cards, parsed strictly."""
    colours = model_colours(model.name for model in outcome.models)
    text = fleet_svg(outcome, colours, **arguments).replace(' xmlns="http://www.w3.org/2000/svg"', "")
    root = ElementTree.fromstring(f"<root>{text}</root>")
    return [element for element in root.iter("svg") if element.get("role") in ("img", "group")]


def of_class(card: ElementTree.Element, *names: str, tag: str = "svg") -> Iterator[ElementTree.Element]:
    return (element for element in card.iter(tag) if element.get("class") in names)


def span(element: ElementTree.Element) -> tuple[float, float]:
    return float(element.get("x", "nan")), float(element.get("width", "nan"))


def title(element: ElementTree.Element) -> str:
    found = element.find("title")
    assert found is not None
    return found.text or ""
