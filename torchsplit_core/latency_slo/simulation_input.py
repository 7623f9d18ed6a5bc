"""Builds the simulation request, servers and queues, of a plan and its request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torchsplit_core.hardware.host_state.validity import check_planned
from torchsplit_core.latency_slo.frontend import frontend_ms, worker_busy_ms
from torchsplit_core.planning.outcome.instances import PlannedInstance, planned_instances
from torchsplit_core.planning.problem.transfers import bytes_per_request, link_between
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.values import (
    EngineServer,
    InputFault,
    LlmModel,
    PlanModel,
    PlannedEngine,
    PlannedGpu,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    Point,
    Server,
    SimulatedModel,
    SimulationRequest,
    Stage,
    Tenant,
    Variant,
    point_type,
    tenants_on,
)
from torchsplit_core.values.simulation.request import Arrivals
from torchsplit_core.values.units import GB

ArrivalsAt = Callable[[PlanModel], Arrivals]
"""Returns the arrivals of a model of a plan request at its demand."""


def simulation_request(
    outcome: PlanOutcome, request: PlanRequest, arrivals: ArrivalsAt | None = None
) -> SimulationRequest:
    """The plan as servers and queues. Raises InputFault if the plan has no slices, cannot be, or belongs to other
    models.

    Each stage has one queue for all its instances; those fastest per request of a full batch come first. `arrivals`
    overrides the model's own arrivals, which default to Poisson at the demand. Models without an instance are omitted,
    and LLMs with an engine of which measured points alone are known.
    If the request has frontend costs and exactly one frontend serves slices of cores, the simulation includes it, and
    workers wait for it between batches.
    """
    if not any(gpu.slices for gpu in outcome.gpus):
        raise InputFault("the plan", "has no slices to simulate", "Plan again, or ease a demand.")
    check_planned(outcome.gpus)
    instances = planned_instances(outcome.gpus, request)
    arrivals_of = arrivals or (lambda model: model.expected_arrivals)
    front = frontend_ms(request, outcome)
    hand_over_ms = request.front.hand_over_ms if request.front and front else 0.0
    unknown = {instance.tenant.model for instance in instances if not has_known_steps(instance.tenant)}
    engines = [
        _engine_server(instance) for instance in _engines(instances) if instance.model.name not in unknown
    ]
    models = tuple(
        simulated_llm(model, model.llm, arrivals_of(model))
        if model.llm is not None
        else _model(request, model, running, arrivals_of(model), front.get(model.name, 0.0))
        for model in request.models
        if (running := [instance for instance in instances if instance.model is model])
        and model.name not in unknown
    )
    if not models:
        raise InputFault(
            "the plan",
            "has only LLMs of which measured points alone are known, which stand for a simulation",
            "Give the LLMs their config to simulate them.",
        )
    # Sorting is stable: equal servers stay in the plan's order.
    waits = {model.name: model.max_wait_ms or 0.0 for model in outcome.models}
    servers = sorted(
        (
            _server(instance, waits, hand_over_ms, front.get(instance.tenant.model, 0.0))
            for instance in instances
            if instance.tenant.engine is None
        ),
        key=lambda server: server.batch_ms[server.max_batch] / server.max_batch,
    )
    return SimulationRequest(models, (*servers, *engines), seed=request.seed)


def has_known_steps(tenant: Tenant) -> bool:
    """Whether it can be simulated: an engine may be known by measured points alone."""
    return tenant.engine is None or tenant.engine.step is not None


def _engines(instances: Sequence[PlannedInstance]) -> Iterator[PlannedInstance]:
    """The engines of a plan, of each group the first of its GPUs."""
    groups: set[str] = set()
    for instance in instances:
        if instance.tenant.engine is not None:
            group = instance.tenant.engine.group
            if group is None or group not in groups:
                yield instance
            groups |= {group} if group is not None else set()


def _engine_server(instance: PlannedInstance) -> EngineServer:
    tenant = instance.tenant
    assert tenant.engine is not None
    return engine_server(
        server_id(instance.gpu, instance.slice, tenant), tenant.model, tenant.stage, tenant.engine
    )


def engine_server(id: str, model: str, stage: str, engine: PlannedEngine) -> EngineServer:
    """The engine as a simulated server; not one of which measured points alone are known."""
    assert engine.step is not None
    assert engine.kv_blocks is not None
    return EngineServer(
        id, model, stage, engine.max_num_seqs, engine.max_num_batched_tokens, engine.kv_blocks, engine.step,
        block_tokens=engine.block_tokens, reserve_full_prompt=engine.reserve_full_prompt,
        max_model_len=engine.max_model_len,
    )  # fmt: skip


def simulated_llm(model: PlanModel, llm: LlmModel, arrivals: Arrivals) -> SimulatedModel:
    """An LLM behind engines, whole, with the lengths and limits of its requests."""
    return SimulatedModel(
        model.name, ("whole",), arrivals, prompt_tokens=llm.prompt_tokens, output_tokens=llm.output_tokens,
        cached_prompt_tokens=llm.cached_prompt_tokens, max_ttft_ms=llm.max_ttft_ms, max_tpot_ms=llm.max_tpot_ms,
    )  # fmt: skip


def without_instance(outcome: PlanOutcome, request: PlanRequest) -> tuple[str, ...]:
    """The models that no slice of the plan serves."""
    served = {tenant.model for *_, tenant in tenants_on(outcome.gpus)}
    return tuple(model.name for model in request.models if model.name not in served)


def server_id(gpu: PlannedGpu, item: PlannedSlice, tenant: Tenant) -> str:
    """A tenant's server id in the simulation of its plan; of an engine on several GPUs their group."""
    if tenant.engine is not None and tenant.engine.group is not None:
        return tenant.engine.group
    id = f"{gpu.id}/{item.profile or 'whole'}@{item.start}"
    return f"{id}/{tenant.model}.{tenant.stage}" if len(item.tenants) > 1 else id


def batch_points(instance: PlannedInstance) -> tuple[Point, ...]:
    """The points that give an instance's batch times."""
    wanted = (point_type(instance.gpu.type), instance.slice.profile, instance.tenant.processes)
    return _timing(instance.stage, wanted, instance.tenant.batch_size)


def points_up_to(stage: Stage, point: Point) -> tuple[Point, ...]:
    """The points for batches up to that of `point`, on the same slice and number of processes."""
    return _timing(stage, (point.gpu_type, point.profile, point.processes), point.batch_size)


def _server(
    instance: PlannedInstance, waits: Mapping[str, float], hand_over_ms: float, front_ms: float
) -> Server:
    """The instance as one simulated server; its processes are the server's count."""
    tenant = instance.tenant
    id = server_id(instance.gpu, instance.slice, tenant)
    times = batch_times(batch_points(instance), tenant.share)
    if tenant.batch_size not in times:
        raise InputFault(
            f"the plan: {id}",
            f"runs {tenant.model} in batches of {tenant.batch_size} with {tenant.processes} "
            f"process{'es' if tenant.processes > 1 else ''}, and the request has no throughput for that",
            "Give the request that this plan answers.",
        )
    times = {size: worker_busy_ms(ms, size, hand_over_ms, front_ms) for size, ms in times.items()}
    wait = waits.get(tenant.model, 0.0)
    return Server(
        id, tenant.model, tenant.stage, tenant.batch_size, times, tenant.processes, max_wait_ms=wait
    )


def batch_times(points: Iterable[Point], share: float = 1.0) -> dict[int, float]:
    """ms of a batch of one process, by batch size; all points have the same slice and number of processes.

    1000 · processes · b / throughput; on a share s of a slice, 1/s times as long.
    """
    times: dict[int, float] = {}
    longest = 0.0
    for point in sorted(points, key=lambda point: point.batch_size):
        # By noise a measured batch may be faster than a smaller one: make the times non-decreasing.
        longest = max(longest, 1000.0 * point.processes * point.batch_size / point.throughput_rps / share)
        times[point.batch_size] = longest
    return times


def _timing(stage: Stage, slice_: tuple[str, str, int], largest: int) -> tuple[Point, ...]:
    """The points for batches up to the largest, on (gpu_type, profile, processes)."""
    return tuple(
        point
        for point in stage.points
        if (point.gpu_type, point.profile, point.processes) == slice_
        and point.batch_size <= largest
        and point.throughput_rps > 0
    )


def _model(
    request: PlanRequest,
    spec: PlanModel,
    instances: Sequence[PlannedInstance],
    arrivals: Arrivals,
    front_ms: float,
) -> SimulatedModel:
    """The model with the stages of the variant that it runs and the transfers between them."""
    variants = {instance.variant.name: instance.variant for instance in instances}
    if len(variants) > 1:
        raise InputFault(
            f"the plan: {spec.name}", f"runs several variants ({', '.join(variants)})", "Plan again."
        )
    (variant,) = variants.values()
    missing = {stage.name for stage in variant.stages} - {instance.tenant.stage for instance in instances}
    if missing:
        raise InputFault(f"the plan: {spec.name}", f"has no instance of {min(missing)}", "Plan again.")
    return SimulatedModel(
        spec.name,
        tuple(stage.name for stage in variant.stages),
        arrivals,
        _transfers_ms(request, variant, instances),
        spec.response_limit_ms,
        variant.cut_bytes,
        variant.cut_bytes_per_request,
        front_ms,
    )


def _transfers_ms(
    request: PlanRequest, variant: Variant, instances: Sequence[PlannedInstance]
) -> tuple[float, ...]:
    """Transfer ms across each cut, for the largest batch in use on either side, as the planner counts them."""
    node_of = {gpu.id: gpu.node for gpu in list_gpus(request.gpus)}
    link = link_between(request, {node_of.get(instance.gpu.id) for instance in instances})
    if link is None:
        return ()
    largest = [
        max(instance.tenant.batch_size for instance in instances if instance.tenant.stage == stage.name)
        for stage in variant.stages
    ]
    return tuple(
        (fixed + max(largest[cut], largest[cut + 1]) * bytes_per_request(variant, cut)) / (link * GB) * 1e3
        for cut, fixed in enumerate(variant.cut_bytes)
    )
