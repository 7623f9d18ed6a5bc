"""Requests to store, and a process that stores many: of its own, so that it loads nothing else."""

from pathlib import Path

from torchsplit_core.values import FleetEntry, PlanModel, PlanRequest, Point, Stage, Variant
from torchsplit_core.workspace.store import Store


def request(count: int = 1) -> PlanRequest:
    point = Point("A100-80GB", "1g.10gb", 8, 120.0, 62.0)
    model = PlanModel("bert", (Variant("whole", (Stage("whole", (point,)),)),))
    return PlanRequest((FleetEntry("A100-80GB", count=count),), (model,))


def write_many(root: str, identity: str, start: int) -> None:
    workspace = Store(Path(root)).open(identity)
    for number in range(start, start + 20):
        workspace.put("plan_request", f"r{number}", request(number + 1))
