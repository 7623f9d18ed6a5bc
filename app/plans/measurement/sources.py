"""What runs for each model of a plan: a sample, a stored file that is trusted, or another in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import streamlit as st

from app.session import models, trust
from app.session.uploads import needs_file, uploads_of
from sample_models import SAMPLES
from torchsplit_core.jobs.job_kinds import UploadedFile
from torchsplit_core.latency_slo.simulation_input import without_instance
from torchsplit_core.planning.confidence.formatting import format_names
from torchsplit_core.serving.plan import has_decoder, is_runnable
from torchsplit_core.values import PlanModel, PlanOutcome, PlanRequest
from torchsplit_core.workspace.store import Workspace

SAMPLE = "sample:"


@dataclass(frozen=True, slots=True)
class Sources:
    """The request with what runs for each of its models, as in `MeasureParameters`; `barred` says for which models
    nothing can run yet, and what to do."""

    request: PlanRequest
    in_place: Mapping[str, str]
    uploads: Mapping[str, UploadedFile]
    barred: tuple[str, ...]


def choose_sources(workspace: Workspace, name: str, request: PlanRequest, plan: PlanOutcome) -> Sources:
    """Ask what runs in place of models without a file here, and for trust in files to execute."""
    idle = without_instance(plan, request)
    served = tuple(model for model in request.models if model.name not in idle and model.llm is None)
    llms = tuple(model for model in request.models if model.name not in idle and model.llm is not None)
    own_sources = [model.source for model in served if is_runnable(model.source)]
    stored = uploads_of(workspace, own_sources)
    missing = [
        model
        for model in served
        if model.source not in stored and (not model.source or needs_file(workspace, model.source))
    ]
    whole = [model.name for model in missing if not _is_cut(model, plan)]
    in_place = _others(workspace, name, whole) if whole else {}
    nothing = [model for model in missing if model.name not in in_place]
    barred = [_describe_missing(nothing, replaceable=bool(whole))] if nothing else []
    files = stored | uploads_of(workspace, in_place.values())
    digests = {file.name: file.sha256 for file in files.values()}
    trusted = not files or trust.trust_box(digests, f"run-trust {name}")
    if not trusted:
        words = f"Serving a model executes its file ({', '.join(digests)}). Tick the box if you trust it."
        barred.append(trust.REFUSED if trust.is_refused() else words)
    barred += _llms_barred(llms)
    models_run = tuple(replace(item, source=in_place.get(item.name, item.source)) for item in request.models)
    uploaded = {
        name: UploadedFile(item.name, item.sha256 if trusted else None) for name, item in files.items()
    }
    return Sources(replace(request, models=models_run), in_place, uploaded, tuple(barred))


def _llms_barred(llms: Sequence[PlanModel]) -> list[str]:
    """Which LLMs have nothing to run: they are served from a folder or config.json of this machine."""
    if llms and trust.is_refused():
        return [trust.REFUSED]
    missing = [model.name for model in llms if not has_decoder(model.source)]
    if not missing:
        return []
    return [
        f"Nothing to run for {format_names(missing)}: an LLM is served from its folder or config.json on this machine. "
        "Make the request with torchsplit request --llm NAME=PATH --points FILE, where torchsplit profile-llm wrote "
        "the points."
    ]


def _is_cut(model: PlanModel, plan: PlanOutcome) -> bool:
    """Whether the plan serves it in stages."""
    planned = next((candidate.variant for candidate in plan.models if candidate.name == model.name), None)
    return any(len(variant.stages) > 1 for variant in model.variants if variant.name == planned)


def _others(workspace: Workspace, name: str, without: Sequence[str]) -> dict[str, str]:
    """The models (files of the workspace and samples) that the user runs in place of these."""
    files = uploads_of(workspace, models.model_names(workspace))
    others = [*files, *(f"{SAMPLE}{sample.name}" for sample in SAMPLES)]
    replacements = {}
    with st.expander("Run another model in the place of one without a file", key=f"run-others {name}"):
        st.caption(
            "Answers and times are then those of the model that you choose here: they say nothing about the plan's own."
        )
        for model in without:
            key = f"run-in-place {name} {model}"
            replacements[model] = st.selectbox(model, others, index=None, placeholder="Nothing", key=key)
    return {model: source for model, source in replacements.items() if source is not None}


def _describe_missing(nothing: Sequence[PlanModel], *, replaceable: bool) -> str:
    """For which models nothing can run, why, and what to do, once for all models of a kind."""
    figures = [model.name for model in nothing if not is_runnable(model.source)]
    files = [f"{model.name} (file {model.source})" for model in nothing if is_runnable(model.source)]
    parts = []
    if figures:
        them = "it" if len(figures) == 1 else "them"
        parts.append(f"Nothing to run for {format_names(figures)}: only figures of {them} are here.")
    if files:
        parts.append(f"Not in this workspace: {format_names(files)}.")
    its, it, file = ("its", "it", "file") if len(nothing) == 1 else ("their", "them", "files")
    first = f"Choose above what runs in {its} place, or upload" if replaceable else "Upload"
    parts.append(f"{first} {its} {file} under Models, measure {it} there and plan again.")
    return " ".join(parts)
