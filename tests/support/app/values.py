"""Hand-made results of every kind: one model traced, profiled and cut, and a plan for two."""

from torchsplit_core.graph import TorchGraph
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import (
    FleetEntry,
    GraphNode,
    NodeProfile,
    ObjectiveValue,
    PartitionCandidate,
    PartitionOutcome,
    PlanModel,
    PlannedGpu,
    PlannedModel,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    Point,
    Profile,
    ProfileRow,
    Stage,
    Tenant,
    Variant,
)

SOURCE = "sample:bert"


def point(profile: str, rps: float, basis: str = "measured") -> Point:
    return Point("A100-80GB", profile, 8, rps, 40.0, basis=basis)  # type: ignore[arg-type]


def request() -> PlanRequest:
    def model(name: str, basis: str) -> PlanModel:
        points = (point("3g.40gb", 300.0, basis), point("4g.40gb", 400.0, basis))
        return PlanModel(
            name, (Variant("whole", (Stage("whole", points),)),), demand_rps=200.0, max_latency_ms=80.0
        )

    return PlanRequest((FleetEntry("A100-80GB"),), (model("bert", "measured"), model("ocr", "estimated")))


def plan(asked: PlanRequest | None = None, status: str = "optimal") -> PlanOutcome:
    asked = asked or request()
    solved = status in ("optimal", "feasible")

    def tenant(model: str, rps: float) -> Tenant:
        return Tenant(model, "whole", "whole", 1.0, 8, 1, rps, None)

    slices = (
        PlannedSlice("4g.40gb", 0, (tenant("bert", 400.0),)),
        PlannedSlice("3g.40gb", 4, (tenant("ocr", 300.0),)),
    )
    return PlanOutcome(
        request_sha256=request_hash(asked),
        status=status,  # type: ignore[arg-type]
        objective=ObjectiveValue(
            "leximin", 1.5 if solved else None, (1.5, 2.0), 1.5, 0.0 if status == "optimal" else 0.25, 2
        ),
        gpus=(PlannedGpu("gpu0", "A100-80GB", solved, slices if solved else ()),),
        models=(
            PlannedModel("bert", "whole", 400.0, 2.0, 40.0),
            PlannedModel("ocr", "whole", 300.0, 1.5, 40.0),
        )
        if solved
        else (),
        statistics=PlanStatistics(0.1, 0.2, 0.0, "highs"),
    )


def graph() -> TorchGraph:
    def op(name: str, kind: str, inputs: tuple[str, ...], module: str) -> GraphNode:
        return GraphNode(name, "op", kind, inputs=inputs, module=module, shape=("s0", 8), output_bytes=64)

    nodes = (
        GraphNode("x", "input", shape=("s0", 8), dtype="float32", output_bytes=64),
        GraphNode("w", "parameter", shape=(8, 8), dtype="float32", output_bytes=256),
        op("a", "aten.linear.default", ("x", "w"), "encoder.layer.0"),
        op("b", "aten.relu.default", ("a",), "encoder.layer.1"),
        op("c", "aten.linear.default", ("b", "w"), "head"),
        GraphNode("y", "output", inputs=("c",)),
    )
    return TorchGraph(nodes, architecture_hash="abc", traced_batch=2)


def profile() -> Profile:
    rows = [
        ProfileRow(
            "whole", "cpu", None, batch, 1, 20.0 * batch, 50.0, 18.0 * batch, 22.0 * batch, 0.1, "measured"
        )
        for batch in (1, 2, 4)
    ]
    rows += [
        ProfileRow(
            "whole", kind, size, batch, 1, 90.0 * batch, 12.0, 60.0 * batch, 120.0 * batch, 1.0, "estimated"
        )
        for kind, sizes in (("A100-80GB", ("3g.40gb", "4g.40gb")), ("H100-SXM5-80GB", ("3g.40gb",)))
        for size in sizes
        for batch in (1, 2, 4)
    ]
    nodes = tuple(NodeProfile(name, share, 64, 128) for name, share in (("a", 0.5), ("b", 0.1), ("c", 0.4)))
    return Profile(SOURCE, "abc", {"device": "this CPU"}, tuple(rows), nodes)


def cuts() -> PartitionOutcome:
    candidate = PartitionCandidate((("a", "b"), ("c",)), (6.0, 4.0), 6.0, (64,), (512, 256))
    return PartitionOutcome("optimal", (candidate,), 6.0, 0.0, source=SOURCE, architecture_hash="abc")
