"""A request whose best plan runs a model cut."""

from tests.support.planning.requests import A30
from torchsplit_core.values import FleetEntry, PlanModel, PlanRequest, Point, Stage, Variant

HALVES = (("2g.12gb", "2g.12gb"),)


def cut_wins() -> PlanRequest:
    """Whole, 10 requests/s on half an A30; cut, each half gives 30."""
    whole = Variant("whole", (Stage("whole", (Point(A30, "2g.12gb", 1, 10.0, 50.0),)),))
    stages = tuple(Stage(name, (Point(A30, "2g.12gb", 1, 30.0, 20.0),)) for name in ("first", "second"))
    model = PlanModel("bert", (whole, Variant("cut", stages, (1e6,))))
    return PlanRequest((FleetEntry(A30, layouts=HALVES),), (model,), link_gb_per_s=1.0)
