"""The vocabulary of the program: frozen dataclasses that every room understands.

Nothing here computes, reads files or imports a third-party package. Units stand in the
names (`latency_ms`, `memory_gib`, `output_bytes`); lists are tuples; a figure that was
measured and one that was estimated are told apart by `basis`.
"""

from torchsplit_core.values.client import SplitClient
from torchsplit_core.values.device import Device, DeviceKind
from torchsplit_core.values.errors import InputFault, InternalFault
from torchsplit_core.values.graph import GraphNode
from torchsplit_core.values.hardware import GpuType, Layout, PlacedProfile, SliceProfile
from torchsplit_core.values.partition import (
    GraphEdge,
    PartitionCandidate,
    PartitionDevices,
    PartitionNode,
    PartitionOutcome,
    PartitionRequest,
)
from torchsplit_core.values.plan_explanation import (
    ChangeEffect,
    LayoutReason,
    ModelBinding,
    ModelLimit,
    PlanExplanation,
    PriceStep,
)
from torchsplit_core.values.plan_outcome import (
    Conflict,
    Demand,
    ObjectiveValue,
    PlannedGpu,
    PlannedModel,
    PlannedSlice,
    PlanOutcome,
    PlanStatistics,
    Relaxation,
    Tenant,
)
from torchsplit_core.values.plan_request import (
    Colocation,
    FleetEntry,
    Objective,
    PlanModel,
    PlanRequest,
    Point,
    SolverOptions,
    Stage,
    Variant,
)
from torchsplit_core.values.profile import (
    FailureReason,
    LatencyPercentiles,
    MemoryParts,
    NodeProfile,
    Percentile,
    Profile,
    ProfileFailure,
    ProfileRow,
    stage_shares,
)
from torchsplit_core.values.progress import Progress, ignore_progress
from torchsplit_core.values.stages import StageLink, StageManifest, StagePart, StageSlot, StageValue

__all__ = [
    "ChangeEffect",
    "Colocation",
    "Conflict",
    "Demand",
    "Device",
    "DeviceKind",
    "FailureReason",
    "FleetEntry",
    "GpuType",
    "GraphEdge",
    "GraphNode",
    "InputFault",
    "InternalFault",
    "LatencyPercentiles",
    "Layout",
    "LayoutReason",
    "MemoryParts",
    "ModelBinding",
    "ModelLimit",
    "NodeProfile",
    "Objective",
    "ObjectiveValue",
    "PartitionCandidate",
    "PartitionDevices",
    "PartitionNode",
    "PartitionOutcome",
    "PartitionRequest",
    "Percentile",
    "PlacedProfile",
    "PlanExplanation",
    "PlanModel",
    "PlanOutcome",
    "PlanRequest",
    "PlanStatistics",
    "PlannedGpu",
    "PlannedModel",
    "PlannedSlice",
    "Point",
    "PriceStep",
    "Profile",
    "ProfileFailure",
    "ProfileRow",
    "Progress",
    "Relaxation",
    "SliceProfile",
    "SolverOptions",
    "SplitClient",
    "Stage",
    "StageLink",
    "StageManifest",
    "StagePart",
    "StageSlot",
    "StageValue",
    "Tenant",
    "Variant",
    "ignore_progress",
    "stage_shares",
]
