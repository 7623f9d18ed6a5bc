"""A stored model as the Graph page sees it: graph, profile, analysis, groups, stages and devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.format.badges import Colour
from app.session import analysis as session_analysis
from app.session import cuts, scenario
from app.session.analysis import Analysis
from app.session.workspace import read_artifact
from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.graph import ALL_STEPS, StepName, TorchGraph
from torchsplit_core.planning.request.build import cut_bytes_of
from torchsplit_core.planning.request.edit import is_model_of
from torchsplit_core.values import InputFault, PartitionOutcome, PlanOutcome, PlanRequest, Profile, tenants_on
from torchsplit_core.workspace.store import Workspace

STAGE = re.compile(r"\.(\d+)of\d+$")
"""How the planner's request names the stage of a candidate."""


@dataclass(frozen=True)
class GraphModel:
    """A model with what its pages draw; `stages` are those of the chosen cut."""

    name: str
    sha256: str
    profile_sha256: str
    graph: TorchGraph
    profile: Profile | None
    analysis: Analysis
    hierarchy: Hierarchy
    stages: Mapping[str, int]
    devices: Mapping[str, str]
    fleet: tuple[str, ...]
    best_cut: PartitionOutcome | None
    misfit: str | None = None
    """Why the model ignores the profile under its name; None where the profile fits or does not exist."""

    @property
    def basis(self) -> str | None:
        """Where its times come from, as the overlays' badge says it; None without times."""
        if self.profile is None or not self.graph.metadata:
            return None
        measured = any(row.basis == "measured" for row in self.profile.rows)
        return f"measured on {self.device}" if measured else "estimated"

    @property
    def device(self) -> str:
        """The device of its profile."""
        return str((self.profile.environment if self.profile else {}).get("device") or "this machine")

    @property
    def basis_text(self) -> str:
        """The badge beside the model's name."""
        return f"times {self.basis}" if self.basis else "not profiled"

    @property
    def basis_colour(self) -> Colour:
        """The colour of that badge."""
        return "gray" if self.basis is None else "yellow" if self.basis == "estimated" else "green"


def open_model(
    workspace: Workspace, name: str, profile_name: str | None = None, steps: tuple[StepName, ...] = ALL_STEPS
) -> GraphModel:
    """Open a model with its own profile, or with a profile of another name and the same architecture.

    Its analysis covers the graph prepared by these steps; cuts always use all steps.
    """
    stored, timed = workspace.find("graph", name), workspace.find("profile", profile_name or name)
    assert stored is not None
    sha256, profile_sha256 = stored.sha256, timed.sha256 if timed else ""
    profile: Profile | None = read_artifact(workspace, timed) if timed else None
    graph, misfit = read_artifact(workspace, stored), None
    analysis = session_analysis.analyse(sha256, graph)
    study = cuts.load_study(workspace, name, graph.architecture_hash)
    chosen = None
    try:
        graph = session_analysis.with_profile(graph, profile)
        if study is not None and profile is not None:
            costs = cuts.provider(sha256, profile_sha256, graph, profile)
            chosen = cuts.selected_cut(workspace, name, study, costs).candidate
    except InputFault as fault:
        # Show the graph without its times.
        profile, profile_sha256, misfit = None, "", str(fault)
    request, plan = scenario.request_and_plan(workspace)
    return GraphModel(
        name=name,
        sha256=sha256,
        profile_sha256=profile_sha256,
        graph=graph,
        profile=profile,
        analysis=session_analysis.analyse(sha256, graph, steps),
        hierarchy=session_analysis.hierarchy(sha256, profile_sha256, graph),
        stages=cuts.stages_of(analysis, chosen) if chosen else {},
        devices=_devices(workspace, name, graph, profile, analysis, request, plan),
        fleet=tuple(dict.fromkeys(entry.type for entry in request.gpus)) if request else (),
        best_cut=(study.outcomes.get(2) or study.last) if study else None,
        misfit=misfit,
    )


def _devices(
    workspace: Workspace,
    name: str,
    graph: TorchGraph,
    profile: Profile | None,
    analysis: Analysis,
    request: PlanRequest | None,
    plan: PlanOutcome | None,
) -> Mapping[str, str]:
    """The slices of the current plan that run each node; for a model without a plan, its profile's device."""
    source = Profile(name, "")
    plan_model = (
        next((entry for entry in request.models if is_model_of(entry, source)), None) if request else None
    )
    model = plan_model.name if plan_model else scenario.short_name(name)
    slices: dict[tuple[str, str], dict[str, None]] = {}
    for gpu, item, tenant in tenants_on(plan.gpus if plan else ()):
        if tenant.model == model:
            where = f"{gpu.id} {item.profile}@{item.start}"
            slices.setdefault((tenant.variant, tenant.stage), {})[where] = None
    if not slices or plan_model is None:
        if profile is None or not profile.nodes:
            return {}
        device = str(profile.environment.get("device") or "estimated, run nowhere")
        return {node.id: device for node in profile.nodes}
    by_node: dict[str, str] = {}
    for (variant_name, stage), places in slices.items():
        text = ", ".join(list(places)[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
        number = STAGE.search(stage)
        variant = next((v for v in plan_model.variants if v.name == variant_name), None)
        if number is None:
            by_node |= {node.id: text for node in graph.ops}
            continue
        if variant is None:
            continue
        for outcome in cuts.offers(workspace):
            for candidate in (
                outcome.candidates if outcome.architecture_hash == graph.architecture_hash else ()
            ):
                if cut_bytes_of(candidate) == (variant.cut_bytes, variant.cut_bytes_per_request):
                    stages = cuts.stages_of(analysis, candidate)
                    by_node |= {node: text for node, at in stages.items() if at == int(number[1]) - 1}
    return by_node
