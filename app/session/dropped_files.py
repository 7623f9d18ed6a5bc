"""Store a dropped contract file in the workspace. This module does not use streamlit."""

from __future__ import annotations

from pathlib import PurePath

from app.session.result_kind import PLACEMENT, SCENARIO, TRAINING
from app.session.workspace import names, read
from torchsplit_core.hardware.host_state.validity import check_state
from torchsplit_core.placement import violations
from torchsplit_core.placement.frontier import frontier_violations
from torchsplit_core.placement.request.validate import validate as validate_placement
from torchsplit_core.planning.prices.price_table import check_prices, today
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.values import (
    HostState,
    InputFault,
    PartitionOutcome,
    PlacementFrontier,
    PlacementOutcome,
    PlacementRequest,
    PlanOutcome,
    PlanRequest,
    Profile,
)
from torchsplit_core.values.evaluation.outcome import EvaluationOutcome
from torchsplit_core.values.plan.prices import PriceTable
from torchsplit_core.values.serving.measurement import Measurement
from torchsplit_core.workspace.named_results import PRICES, evaluation_name
from torchsplit_core.workspace.store import KINDS, Artifact, Workspace
from torchsplit_core.workspace.untrusted_files import read_contract


def store_dropped(workspace: Workspace, file: str, data: bytes) -> Artifact:
    """Store a contract file under the name its content suggests. Raises InputFault where it is no such file."""
    format_name, value = read_contract(data, file)
    kind = format_name.removeprefix("torchsplit.")
    if kind not in KINDS:
        raise InputFault(
            file,
            f"is a file of the format {format_name}, which a workspace does not keep",
            "Use the command line for it.",
        )
    if isinstance(value, PlanRequest):
        validate(value)
    if isinstance(value, PlacementRequest):
        validate_placement(value)
    if isinstance(value, HostState):
        check_state(value, file)
    if isinstance(value, PriceTable):
        check_prices(value, today(), file)
    stem = PurePath(file).name.partition(".")[0] or "imported"
    name = _name(workspace, kind, value, stem)
    if kind == "profile" and name in names(workspace, kind) and read(workspace, kind, name) != value:
        # A second profile of a model gets a name beside the first, so that users can compare them.
        name = f"{name} ({stem[:60]})"
    artifact = workspace.put_bytes(kind, name, data)
    for result_kind in (SCENARIO, PLACEMENT, TRAINING):
        # The pages cannot show an outcome without its request.
        if kind in result_kind.artifact_kinds and name in result_kind.names(workspace):
            result_kind.choose(workspace, name)
    return artifact


def _name(workspace: Workspace, kind: str, value: object, stem: str) -> str:
    """The name to store a value under: a profile's source, an outcome's request, a graph's profile, else the stem."""
    if isinstance(value, PriceTable):
        return PRICES
    if isinstance(value, Profile):
        return value.source[:120].strip() or stem
    if isinstance(value, PartitionOutcome) and value.source:
        stages = len(value.candidates[0].stages) if value.candidates else 1
        return f"{value.source[:100]} in {stages}"
    if isinstance(value, EvaluationOutcome):
        return evaluation_name(quick=value.settings.quick)
    if isinstance(value, PlanOutcome | Measurement):
        for candidate in names(workspace, "plan_request"):
            if request_hash(read(workspace, "plan_request", candidate)) == value.request_sha256:
                return candidate
    if isinstance(value, PlacementOutcome):
        for candidate in names(workspace, "placement_request"):
            if not any(violations(read(workspace, "placement_request", candidate), value)):
                return candidate
    if isinstance(value, PlacementFrontier):
        for candidate in names(workspace, "placement_request"):
            if not any(frontier_violations(read(workspace, "placement_request", candidate), value)):
                return candidate
    architecture = getattr(value, "architecture_hash", "")
    if kind == "graph" and architecture:
        for candidate in names(workspace, "profile"):
            if read(workspace, "profile", candidate).architecture_hash == architecture:
                return candidate
    return stem
