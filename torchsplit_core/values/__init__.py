"""The vocabulary of the program: frozen dataclasses that every room understands.

Nothing here computes, reads files or imports a third-party package. Units stand in the
names (`latency_ms`, `memory_gib`, `output_bytes`); lists are tuples; `basis` says whether a
figure was measured or estimated. Limits of fields in contract files stand in their annotations (`fields`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.values.day.outcome import BothSides, DayOutcome, DayWindow
    from torchsplit_core.values.day.replay import (
        DayReplay,
        ReplayedTrace,
        ReplayHour,
        ReplayModel,
        ReplayShares,
        ReplaySide,
        ReplayTimes,
        ThresholdRule,
    )
    from torchsplit_core.values.device import Device, DeviceKind, SlicesToMake
    from torchsplit_core.values.errors import (
        InputFault,
        InternalFault,
        last_cause,
        quoted,
        suggestion,
        system_reason,
    )
    from torchsplit_core.values.graph import GraphNode
    from torchsplit_core.values.hardware import (
        CPU,
        WHOLE_GPU,
        GpuType,
        Layout,
        PlacedProfile,
        SliceProfile,
        point_type,
        profile_words,
    )
    from torchsplit_core.values.model_protocols import CLIENT_TEMPLATE, SplitClient, TrainClient
    from torchsplit_core.values.partition import (
        GraphEdge,
        PartitionCandidate,
        PartitionDevices,
        PartitionNode,
        PartitionOutcome,
        PartitionRequest,
    )
    from torchsplit_core.values.placement import (
        FrontierPoint,
        LinearCoefficients,
        LinearThroughput,
        PlacedLink,
        PlacedReplica,
        PlacedSegment,
        PlacementFrontier,
        PlacementGpu,
        PlacementModel,
        PlacementOutcome,
        PlacementRequest,
        PlacementSolver,
        RooflineGpu,
        RooflineThroughput,
        TableThroughput,
        ThroughputRow,
    )
    from torchsplit_core.values.plan.demand_over_day import DemandLevels, DemandWindow
    from torchsplit_core.values.plan.explanation import (
        ChangeEffect,
        EngineReason,
        LayoutReason,
        ModelBinding,
        ModelLimit,
        PlanExplanation,
        PriceStep,
    )
    from torchsplit_core.values.plan.fault import PlanFault, slice_name
    from torchsplit_core.values.plan.host_state import ForeignTenant, HostState, StateGpu, StateInstance
    from torchsplit_core.values.plan.llm import (
        LlmEngineOptions,
        LlmModel,
        LlmPoint,
        LlmPoints,
        PlannedEngine,
        TokenFigure,
    )
    from torchsplit_core.values.plan.outcome import (
        Conflict,
        Demand,
        HeldSamples,
        ObjectiveValue,
        PlannedGpu,
        PlannedModel,
        PlannedSlice,
        PlanOutcome,
        PlanStatistics,
        Relaxation,
        ResponsePercentiles,
        RoutedBytes,
        tenants_on,
    )
    from torchsplit_core.values.plan.request import (
        Colocation,
        ColocationMode,
        EnginePoint,
        FleetEntry,
        Objective,
        ObjectiveKind,
        PlanModel,
        PlanRequest,
        Point,
        SolverOptions,
        Stage,
        Variant,
    )
    from torchsplit_core.values.plan.tenant import Tenant
    from torchsplit_core.values.profile import (
        FailureReason,
        LatencyPercentiles,
        MemoryParts,
        NodeProfile,
        NodeTimes,
        Pace,
        Percentile,
        Profile,
        ProfileFailure,
        ProfileRow,
        at_first_length,
        at_sequence_length,
        sequence_lengths,
        stage_shares,
    )
    from torchsplit_core.values.progress import Progress, ignore_progress
    from torchsplit_core.values.simulation.engine import (
        ConstantTokens,
        EngineServer,
        ListedTokens,
        LognormalTokens,
        StepLine,
        TokenCounts,
    )
    from torchsplit_core.values.simulation.outcome import (
        HalfWidths,
        HighestLoad,
        ModelLoad,
        ResponseTimes,
        ServerLoad,
        SimulationOutcome,
        TokenTimes,
        WaitTimes,
    )
    from torchsplit_core.values.simulation.request import (
        DeterministicArrivals,
        GammaArrivals,
        MaxLoadSearch,
        MmppArrivals,
        PoissonArrivals,
        RateState,
        Server,
        Service,
        SimulatedModel,
        SimulationRequest,
        TraceArrivals,
    )
    from torchsplit_core.values.stages import (
        SizeRange,
        StageLink,
        StageManifest,
        StagePart,
        StageSlot,
        StageValue,
    )
    from torchsplit_core.values.transition.outcome import (
        MappedGpu,
        MappedInstance,
        ModelDuring,
        StepAction,
        Transition,
        TransitionCounts,
        TransitionStep,
    )

__all__ = [
    "CLIENT_TEMPLATE",
    "CPU",
    "WHOLE_GPU",
    "BothSides",
    "ChangeEffect",
    "Colocation",
    "ColocationMode",
    "Conflict",
    "ConstantTokens",
    "DayOutcome",
    "DayReplay",
    "DayWindow",
    "Demand",
    "DemandLevels",
    "DemandWindow",
    "DeterministicArrivals",
    "Device",
    "DeviceKind",
    "EnginePoint",
    "EngineReason",
    "EngineServer",
    "FailureReason",
    "FleetEntry",
    "ForeignTenant",
    "FrontierPoint",
    "GammaArrivals",
    "GpuType",
    "GraphEdge",
    "GraphNode",
    "HalfWidths",
    "HeldSamples",
    "HighestLoad",
    "HostState",
    "InputFault",
    "InternalFault",
    "LatencyPercentiles",
    "Layout",
    "LayoutReason",
    "LinearCoefficients",
    "LinearThroughput",
    "ListedTokens",
    "LlmEngineOptions",
    "LlmModel",
    "LlmPoint",
    "LlmPoints",
    "LognormalTokens",
    "MappedGpu",
    "MappedInstance",
    "MaxLoadSearch",
    "MemoryParts",
    "MmppArrivals",
    "ModelBinding",
    "ModelDuring",
    "ModelLimit",
    "ModelLoad",
    "NodeProfile",
    "NodeTimes",
    "Objective",
    "ObjectiveKind",
    "ObjectiveValue",
    "Pace",
    "PartitionCandidate",
    "PartitionDevices",
    "PartitionNode",
    "PartitionOutcome",
    "PartitionRequest",
    "Percentile",
    "PlacedLink",
    "PlacedProfile",
    "PlacedReplica",
    "PlacedSegment",
    "PlacementFrontier",
    "PlacementGpu",
    "PlacementModel",
    "PlacementOutcome",
    "PlacementRequest",
    "PlacementSolver",
    "PlanExplanation",
    "PlanFault",
    "PlanModel",
    "PlanOutcome",
    "PlanRequest",
    "PlanStatistics",
    "PlannedEngine",
    "PlannedGpu",
    "PlannedModel",
    "PlannedSlice",
    "Point",
    "PoissonArrivals",
    "PriceStep",
    "Profile",
    "ProfileFailure",
    "ProfileRow",
    "Progress",
    "RateState",
    "Relaxation",
    "ReplayHour",
    "ReplayModel",
    "ReplayShares",
    "ReplaySide",
    "ReplayTimes",
    "ReplayedTrace",
    "ResponsePercentiles",
    "ResponseTimes",
    "RooflineGpu",
    "RooflineThroughput",
    "RoutedBytes",
    "Server",
    "ServerLoad",
    "Service",
    "SimulatedModel",
    "SimulationOutcome",
    "SimulationRequest",
    "SizeRange",
    "SliceProfile",
    "SlicesToMake",
    "SolverOptions",
    "SplitClient",
    "Stage",
    "StageLink",
    "StageManifest",
    "StagePart",
    "StageSlot",
    "StageValue",
    "StateGpu",
    "StateInstance",
    "StepAction",
    "StepLine",
    "TableThroughput",
    "Tenant",
    "ThresholdRule",
    "ThroughputRow",
    "TokenCounts",
    "TokenFigure",
    "TokenTimes",
    "TraceArrivals",
    "TrainClient",
    "Transition",
    "TransitionCounts",
    "TransitionStep",
    "Variant",
    "WaitTimes",
    "at_first_length",
    "at_sequence_length",
    "ignore_progress",
    "last_cause",
    "point_type",
    "profile_words",
    "quoted",
    "sequence_lengths",
    "slice_name",
    "stage_shares",
    "suggestion",
    "system_reason",
    "tenants_on",
]

__getattr__ = on_demand(
    __name__,
    {
        "model_protocols": "CLIENT_TEMPLATE SplitClient TrainClient",
        "day.outcome": "BothSides DayOutcome DayWindow",
        "day.replay": (
            "DayReplay ReplayHour ReplayModel ReplayShares ReplaySide ReplayTimes ReplayedTrace ThresholdRule"
        ),
        "device": "Device DeviceKind SlicesToMake",
        "errors": "InputFault InternalFault last_cause quoted suggestion system_reason",
        "graph": "GraphNode",
        "hardware": "CPU WHOLE_GPU GpuType Layout PlacedProfile SliceProfile point_type profile_words",
        "partition": (
            "GraphEdge PartitionCandidate PartitionDevices PartitionNode PartitionOutcome PartitionRequest"
        ),
        "placement": (
            "FrontierPoint LinearCoefficients LinearThroughput PlacedLink PlacedReplica PlacedSegment "
            "PlacementFrontier PlacementGpu PlacementModel PlacementOutcome PlacementRequest PlacementSolver "
            "RooflineGpu RooflineThroughput TableThroughput ThroughputRow"
        ),
        "plan.demand_over_day": "DemandLevels DemandWindow",
        "plan.explanation": "ChangeEffect EngineReason LayoutReason ModelBinding ModelLimit PlanExplanation PriceStep",
        "plan.fault": "PlanFault slice_name",
        "plan.host_state": "ForeignTenant HostState StateGpu StateInstance",
        "plan.llm": "LlmEngineOptions LlmModel LlmPoint LlmPoints PlannedEngine TokenFigure",
        "plan.outcome": (
            "Conflict Demand HeldSamples ObjectiveValue PlannedGpu PlannedModel PlannedSlice PlanOutcome "
            "PlanStatistics Relaxation ResponsePercentiles RoutedBytes tenants_on"
        ),
        "plan.request": (
            "Colocation ColocationMode EnginePoint FleetEntry Objective ObjectiveKind PlanModel PlanRequest Point "
            "SolverOptions Stage Variant"
        ),
        "plan.tenant": "Tenant",
        "profile": (
            "FailureReason LatencyPercentiles MemoryParts NodeProfile NodeTimes Pace Percentile Profile "
            "ProfileFailure ProfileRow at_first_length at_sequence_length sequence_lengths stage_shares"
        ),
        "progress": "Progress ignore_progress",
        "simulation.engine": "ConstantTokens EngineServer ListedTokens LognormalTokens StepLine TokenCounts",
        "simulation.outcome": (
            "HalfWidths HighestLoad ModelLoad ResponseTimes ServerLoad SimulationOutcome TokenTimes WaitTimes"
        ),
        "simulation.request": (
            "DeterministicArrivals MaxLoadSearch GammaArrivals MmppArrivals PoissonArrivals RateState Server "
            "Service SimulatedModel SimulationRequest TraceArrivals"
        ),
        "stages": "SizeRange StageLink StageManifest StagePart StageSlot StageValue",
        "transition.outcome": (
            "MappedGpu MappedInstance ModelDuring StepAction Transition TransitionCounts TransitionStep"
        ),
    },
)
