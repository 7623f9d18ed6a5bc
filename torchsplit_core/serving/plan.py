"""What to serve: a plan and its request as models, bound slices and workers. Starts nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard

from torchsplit_core.latency_slo.simulation_input import server_id, simulation_request, without_instance
from torchsplit_core.planning.outcome.instances import PlannedInstance, planned_instances
from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings
from torchsplit_core.values import (
    CPU,
    Device,
    InputFault,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    Variant,
    point_type,
    quoted,
    tenants_on,
)


@dataclass(frozen=True, slots=True)
class BoundSlice:
    """A slice of the plan, bound to a device of this host.

    `cores` are the cores that its processes are pinned to; empty on a GPU.
    """

    id: str
    gpu: str
    profile: str
    start: int
    device: Device
    cores: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker process of a model's stage (`position` from 0) on a slice, with batches of up to `max_batch` rows.

    `server` is the server id in the plan's simulation, the same for all processes of an instance. Of several free
    workers of a stage the one with the lowest `order` starts. `share` is the tenant's share of the slice.
    """

    id: str
    server: str
    model: str
    stage: str
    position: int
    slice: str
    max_batch: int
    order: int
    share: float = 1.0
    processes: int = 1


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model, its stages, and how long a batch may wait for more requests.

    `nodes` lists the graph nodes of each stage; empty for a model that is not cut.
    """

    name: str
    source: str
    stages: tuple[str, ...]
    nodes: tuple[tuple[str, ...], ...]
    max_wait_ms: float


@dataclass(frozen=True, slots=True)
class ServedEngine:
    """An engine of an LLM on cores. `server` is its id in the plan's simulation; `settings` name model and cores."""

    server: str
    slice: str
    settings: LlmEngineSettings

    @property
    def model(self) -> str:
        """The name of its LLM."""
        return self.settings.name


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """Everything that `serve` starts. `engines` are in the order of the plan's simulation."""

    models: tuple[ServedModel, ...]
    slices: tuple[BoundSlice, ...]
    workers: tuple[WorkerSpec, ...]
    warnings: tuple[str, ...] = ()
    engines: tuple[ServedEngine, ...] = ()

    @property
    def shared_slices(self) -> tuple[str, ...]:
        """Slices with several tenants."""
        tenants: dict[str, set[tuple[str, str]]] = {}
        for worker in self.workers:
            tenants.setdefault(worker.slice, set()).add((worker.model, worker.stage))
        return tuple(name for name, users in tenants.items() if len(users) > 1)


def plan_serving(
    outcome: PlanOutcome, request: PlanRequest, bound_slices: Sequence[BoundSlice]
) -> ServingPlan:
    """The serving plan of a plan whose slices are bound.

    Raises InputFault if the plan has no slices or answers another request, for an engine on a GPU, a model without a
    source and a cut without nodes.
    """
    check_engines_on_cores(outcome)
    order = _simulation_order(outcome, request)
    waits = {model.name: model.max_wait_ms or 0.0 for model in outcome.models}
    slice_at = {(bound.gpu, bound.profile, bound.start): bound for bound in bound_slices}
    workers: list[WorkerSpec] = []
    variants: dict[str, Variant] = {}
    engines: list[ServedEngine] = []
    for instance in planned_instances(outcome.gpus, request):
        gpu, item, tenant = instance.gpu, instance.slice, instance.tenant
        if tenant.engine is not None:
            engines.append(_served_engine(instance, slice_at[gpu.id, item.profile, item.start]))
            continue
        variants[tenant.model] = instance.variant
        server = server_id(gpu, item, tenant)
        spec = WorkerSpec(
            server,
            server,
            tenant.model,
            tenant.stage,
            instance.variant.stages.index(instance.stage),
            slice_at[gpu.id, item.profile, item.start].id,
            tenant.batch_size,
            order[server],
            tenant.share,
            tenant.processes,
        )
        workers += [replace(spec, id=f"{server}#{number}") for number in range(tenant.processes)]
    models = tuple(
        _served_model(model, variants[model.name], waits.get(model.name, 0.0))
        for model in request.models
        if model.name in variants
    )
    idle = (
        f"{name} has no instance in this plan and is not served"
        for name in without_instance(outcome, request)
    )
    return ServingPlan(
        models,
        tuple(bound_slices),
        tuple(sorted(workers, key=lambda worker: worker.order)),
        (*idle, *_memory_warnings(outcome, slice_at)),
        tuple(engines),
    )


def check_engines_on_cores(outcome: PlanOutcome) -> None:
    """Raises InputFault for a plan with engines of LLMs on GPUs."""
    on_gpus = {
        tenant.model: gpu.type
        for gpu, _, tenant in tenants_on(outcome.gpus)
        if tenant.engine is not None and point_type(gpu.type) != CPU
    }
    if on_gpus:
        named = ", ".join(f"{model} on {kind}" for model, kind in on_gpus.items())
        raise InputFault(
            "the plan",
            f"has engines of LLMs on GPUs ({named}), and engines are run on cores of a host alone",
            "Write their vLLM servers with torchsplit deploy.",
        )


def _simulation_order(outcome: PlanOutcome, request: PlanRequest) -> dict[str, int]:
    """Places of the batch servers in the simulation, so that what is served is what is simulated."""
    tenants = [tenant for _, _, tenant in tenants_on(outcome.gpus)]
    if tenants and all(tenant.engine is not None for tenant in tenants):
        return {}
    return {server.id: number for number, server in enumerate(simulation_request(outcome, request).servers)}


def _served_engine(instance: PlannedInstance, bound: BoundSlice) -> ServedEngine:
    engine, model = instance.tenant.engine, instance.model
    assert engine is not None
    settings = LlmEngineSettings(
        _decoder_source(model), model.name, engine.max_num_seqs, engine.max_num_batched_tokens,
        block_tokens=engine.block_tokens, max_model_len=engine.max_model_len,
        threads=len(bound.cores), cores=bound.cores,
    )  # fmt: skip
    if engine.kv_blocks is not None:
        settings = replace(settings, kv_blocks=engine.kv_blocks)
    return ServedEngine(server_id(instance.gpu, instance.slice, instance.tenant), bound.id, settings)


def has_decoder(source: str | None) -> TypeGuard[str]:
    """Whether a source is a folder with a config.json on this host, or such a file."""
    path = Path(source or "")
    return bool(source) and (path.is_file() or (path / "config.json").is_file())


def _decoder_source(model: PlanModel) -> str:
    """The folder or config.json of an LLM. Raises InputFault without one on this host."""
    source = model.source
    if has_decoder(source):
        return str(Path(source).absolute())
    problem = (
        f"is {quoted(source)}, which is no folder with a config.json on this host" if source else "is missing"
    )
    raise InputFault(
        f"models: {model.name}: source",
        problem,
        "Write there the path of the model's folder or of its config.json, whose weights are then random "
        "(torchsplit request --llm NAME=PATH --points FILE).",
    )


def _memory_warnings(
    outcome: PlanOutcome, slice_at: Mapping[tuple[str, str, int], BoundSlice]
) -> Iterator[str]:
    """Warn of tenants that need more memory than their cores' part of this host's: nothing enforces that limit."""
    for gpu in outcome.gpus:
        for item in gpu.slices:
            bound = slice_at[gpu.id, item.profile, item.start]
            needed_gib = sum(tenant.memory_gib or 0.0 for tenant in item.tenants)
            available_gib = bound.device.memory_gib
            if bound.cores and available_gib is not None and needed_gib > available_gib:
                yield (
                    f"{bound.id}: its tenants need {needed_gib:.3g} GiB, and {bound.device.name} have "
                    f"{available_gib:.3g} GiB of its memory"
                )


def is_runnable(source: str | None) -> TypeGuard[str]:
    """Whether a source can be loaded; a model whose figures come from a table or the library has none."""
    return bool(source) and not str(source).startswith(("library:", "import:"))


def _served_model(model: PlanModel, variant: Variant, max_wait_ms: float) -> ServedModel:
    if not is_runnable(model.source):
        raise InputFault(
            f"models: {model.name}: source",
            f"is {quoted(model.source)}, which cannot be run" if model.source else "is missing",
            "Make the request from the model's profile (torchsplit request PROFILE), or write there sample:NAME, "
            "FILE.pt2 or FILE.py:NAME.",
        )
    cut = len(variant.stages) > 1
    if cut and not all(stage.nodes for stage in variant.stages):
        missing = next(stage.name for stage in variant.stages if not stage.nodes)
        raise InputFault(
            f"models: {model.name}: variants: {variant.name}: stage {missing}: nodes",
            "are missing, and a cut is served by the nodes of its stages",
            "Make the request with --candidates FILE, which fills them.",
        )
    return ServedModel(
        model.name,
        model.source,
        tuple(stage.name for stage in variant.stages),
        tuple(stage.nodes for stage in variant.stages) if cut else (),
        max_wait_ms,
    )
