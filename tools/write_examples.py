"""Write one small example of every contract file to examples/ (run after a change of a format).

With options only the parts that they name.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from tools.example_days import day_request, day_trace, example_prices
from tools.example_history import history, job_profiles
from tools.example_llms import llm_requests
from tools.example_placements import decode_70b, thirty_gpus, tiny_placement
from torchsplit_core import workflow
from torchsplit_core.day_plans.replay.sides import ReplaySettings
from torchsplit_core.engine_plans.engine_figures import EngineRequests
from torchsplit_core.evaluation.run import evaluate
from torchsplit_core.files import read_file, write_file
from torchsplit_core.planning.request.build import build_request
from torchsplit_core.planning.sample_plans.drawn import drawn_samples
from torchsplit_core.profiling.library import mix_request, serving_mixes
from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings
from torchsplit_core.serving.settings import LoadSettings, ServeSettings
from torchsplit_core.stages import export_stages
from torchsplit_core.tables.demand_trace.trace_csv import read_demand_trace
from torchsplit_core.tables.prices.price_csv import write_price_csv
from torchsplit_core.transition import plan_transition
from torchsplit_core.values import (
    WHOLE_GPU,
    EngineServer,
    FleetEntry,
    ForeignTenant,
    GammaArrivals,
    GraphEdge,
    HostState,
    LognormalTokens,
    MaxLoadSearch,
    Objective,
    PartitionDevices,
    PartitionNode,
    PartitionOutcome,
    PartitionRequest,
    PlanOutcome,
    PlanRequest,
    PoissonArrivals,
    Server,
    Service,
    SimulatedModel,
    SimulationRequest,
    StageManifest,
    StateGpu,
    StateInstance,
    StepLine,
    Tenant,
)
from torchsplit_core.values.evaluation.outcome import CaseKey, EvaluationSettings
from torchsplit_core.values.serving.routes import (
    RoutedModel,
    RoutedOutput,
    RoutedTensor,
    Routes,
    RouteServer,
    RouteStep,
)
from torchsplit_core.values.strategy.request import (
    StrategyFix,
    StrategyNodes,
    StrategyRequest,
    TransformerSizes,
)
from torchsplit_core.values.training import TrainingJob

FOLDER = Path(__file__).resolve().parent.parent / "examples"


def small_mix() -> PlanRequest:
    """Three models of the published mix S1 on one A100-80GB, exclusive, leximin, one process per slice."""
    mix = mix_request("S1", 1)
    chosen = []
    for model in mix.models:
        if model.name in ("bert", "mobilenetv2", "resnet50"):
            (variant,) = model.variants
            (stage,) = variant.stages
            points = tuple(point for point in stage.points if point.processes == 1)
            chosen.append(
                replace(model, variants=(replace(variant, stages=(replace(stage, points=points),)),))
            )
    return replace(mix, models=tuple(chosen), solver=replace(mix.solver, time_limit_s=60.0))


def mixed_fleet() -> PlanRequest:
    """Two models on a GPU with MIG, one with MIG off, one that has no MIG, and 16 cores; survives the loss of any GPU.

    Figures that are not of the published mix are made up to show the format.
    """
    bert, mobile = (model for model in small_mix().models if model.name in ("bert", "mobilenetv2"))
    others = (
        ("A100-80GB", WHOLE_GPU, 6.5, 6.0),
        ("L4-24GB", WHOLE_GPU, 1.6, 5.0),
        ("CPU", "4c", 0.05, None),
        ("CPU", "8c", 0.09, None),
    )
    models = []
    for model in (bert, mobile):
        (variant,) = model.variants
        (stage,) = variant.stages
        slices = tuple(point for point in stage.points if point.batch_size == 8)
        small = next(point for point in slices if point.profile == "1g.10gb")
        made_up = tuple(
            replace(
                small,
                gpu_type=kind,
                profile=profile,
                throughput_rps=round(small.throughput_rps * factor, 1),
                latency_ms=round(small.latency_ms / factor, 1),
                memory_gib=memory,
                basis="estimated",
            )
            for kind, profile, factor, memory in others
        )
        points = (*slices, *made_up)
        models.append(
            replace(
                model,
                variants=(replace(variant, stages=(replace(stage, points=points),)),),
                max_latency_ms=None,
                min_throughput_rps=model.demand_rps,
            )
        )
    return PlanRequest(
        (
            FleetEntry("A100-80GB", id="node0/gpu0"),
            FleetEntry("A100-80GB", id="node0/gpu1", mig=False),
            FleetEntry("L4-24GB", id="node1/gpu0"),
            FleetEntry("CPU-16c", id="node1/cpu"),
        ),
        tuple(models),
        objective=Objective(survives=1),
    )


def write_fleet() -> None:
    """The mixed fleet and its plan."""
    request = mixed_fleet()
    (FOLDER / "fleets").mkdir(exist_ok=True)
    write_file(request, FOLDER / "fleets" / "mixed_request.json")
    write_file(workflow.plan(request), FOLDER / "fleets" / "mixed_plan.json")


def within_response_times(name: str, gpus: int) -> PlanRequest:
    """A mix on the fewest of so many GPUs, with the p95 response of every model within its published objective."""
    (mix,) = (mix for mix in serving_mixes() if mix.name == name)
    limits = {entry.model: entry.slo_ms for entry in mix.models}
    request = mix_request(name, gpus, "min_gpus")
    models = (
        replace(model, max_latency_ms=None, max_response_ms=limits[model.name]) for model in request.models
    )
    return replace(request, models=tuple(models))


def published_mixes() -> dict[str, PlanRequest]:
    """The two published serving mixes by file name: on the fewest of 8 GPUs, leximin on so many, within SLOs."""
    found = {}
    for mix, fewest in (("S1", 2), ("S3", 5)):
        found[f"{mix.lower()}_fewest_gpus"] = mix_request(mix, 8, "min_gpus")
        found[f"{mix.lower()}_fair_{fewest}gpus"] = mix_request(mix, fewest, "leximin")
    found["s1_response_time"] = within_response_times("S1", 8)
    return found


def write_samples() -> None:
    """A published mix whose demands move together: 120 joint samples, 95 % of them on the fewest of 8 GPUs."""
    request = drawn_samples(mix_request("S1", 8, "min_gpus"), 120, 0.5, 0.4)
    models = (replace(model, min_throughput_rps=None) for model in request.models)
    objective = replace(request.objective, attainment=0.95)
    request = replace(request, models=tuple(models), objective=objective)
    write_file(request, FOLDER / "samples" / "request.json")
    write_file(workflow.plan(request), FOLDER / "samples" / "plan.json")


def write_placements() -> None:
    """The two published placement cases, the outcome of the small one, one with a roofline and its curve."""
    tiny = tiny_placement()
    write_file(tiny, FOLDER / "placement_request.json")
    write_file(workflow.place(tiny), FOLDER / "placement.json")
    write_file(workflow.placement_frontier(decode_70b()), FOLDER / "placement_frontier.json")
    write_file(thirty_gpus(), FOLDER / "placements" / "thirty_gpus.json")
    write_file(decode_70b(), FOLDER / "placements" / "decode_70b.json")
    literal = replace(decode_70b(), units="seed_literal")
    write_file(literal, FOLDER / "placements" / "decode_70b_seed_literal.json")


def under_load() -> SimulationRequest:
    """A whole model and one cut in two, on slices of two profiles, with limits for which to find the max load."""
    return SimulationRequest(
        (
            SimulatedModel("bert", ("whole",), PoissonArrivals(250.0), slo_ms=60.0),
            SimulatedModel(
                "ocr",
                ("find", "read"),
                GammaArrivals(40.0, 2.0),
                transfer_ms=(0.4,),
                slo_ms=250.0,
                cut_bytes_per_request=(600_000.0,),
            ),
        ),
        (
            Server("gpu0/3g.40gb@0", "bert", "whole", 8, {1: 10.0, 2: 11.0, 4: 14.0, 8: 20.0}, 1, 2.0),
            Server("gpu0/1g.10gb@4", "ocr", "find", 4, {1: 12.0, 4: 30.0}),
            Server("gpu0/1g.10gb@5", "ocr", "read", 1, {1: 15.0}, 2, service=Service("lognormal", 0.5)),
        ),
        requests_per_model=5_000,
        replications=3,
        find=MaxLoadSearch(95.0),
    )


def chats_under_load() -> SimulationRequest:
    """Chats on two engines of an LLM with 8 billion weights in bf16 on an A100-80GB each, beside BERT on a slice.

    Lines: weights and keys over 0.8 of the memory bandwidth, 2,039 GB/s, and two operations a weight and token over
    0.6 of the peak, 312 TFLOP/s, both with half a millisecond of the host (datasheet; shares estimated).
    """
    weights, bytes_per_ms, flops_per_ms = 8.03e9, 0.8 * 2039e6, 0.6 * 312e9
    token_ms = round(2 * weights / flops_per_ms, 6)
    lines = (
        StepLine(
            round(0.5 + 2 * weights / bytes_per_ms, 3), context_token_ms=round(131_072 / bytes_per_ms, 9)
        ),
        StepLine(0.5, prompt_token_ms=token_ms, sequence_ms=token_ms),
    )
    return SimulationRequest(
        (
            SimulatedModel(
                "chat",
                ("whole",),
                PoissonArrivals(6.0),
                prompt_tokens=LognormalTokens(900.0, 0.9),
                output_tokens=LognormalTokens(250.0, 0.7),
                max_ttft_ms=500.0,
                max_tpot_ms=25.0,
            ),
            SimulatedModel("bert", ("whole",), PoissonArrivals(250.0), slo_ms=60.0),
        ),
        (
            EngineServer("engine", "chat", "whole", 128, 2048, 25_000, lines, count=2, max_model_len=8192),
            Server("gpu2/3g.40gb@0", "bert", "whole", 8, {1: 10.0, 2: 11.0, 4: 14.0, 8: 20.0}),
        ),
        requests_per_model=2_000,
        replications=3,
    )


def write_simulation() -> None:
    """Two simulation requests, and the outcome of the first."""
    write_file(chats_under_load(), FOLDER / "simulations" / "chats_on_two_engines.json")
    write_file(under_load(), FOLDER / "simulation_request.json")
    write_file(workflow.simulate(under_load()), FOLDER / "simulation.json")


def training_4b() -> StrategyRequest:
    """A decoder with 4 billion weights on eight nodes of eight A100, with two fixed choices."""
    return StrategyRequest(
        TransformerSizes(30, 3072, 32, 32, 12288, 50257, 2048),
        (StrategyNodes(8, 8, "A100-80GB", between_gb_per_s=100.0),),
        TrainingJob(512),
        StrategyFix(tensor=2, micro_batch=8),
        top_k=3,
    )


def write_measurement() -> None:
    """A plan of one core of this host, served and loaded for five seconds."""
    _, profile = workflow.profile(
        "sample:bert", device="cpu:1c", batch_sizes=(1, 2, 4), gpu_types=("A100-80GB",)
    )
    request = build_request([profile], (FleetEntry("CPU-1c"),), demands={"bert": 20.0})
    found = workflow.measure(workflow.plan(request), request, ServeSettings(port=0), LoadSettings(5.0))
    write_file(found, FOLDER / "measurement.json")


def write_llm_points() -> None:
    """Points of an LLM with small random weights on one core of this host."""
    decoder = {
        "model_type": "llama", "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 512,
        "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
    }  # fmt: skip
    lengths = LognormalTokens(64.0, 0.5), LognormalTokens(32.0, 0.5)
    requests = EngineRequests(*lengths, None, 200.0, 20.0, 95.0, PoissonArrivals(1.0), 0)
    with tempfile.TemporaryDirectory() as room:
        config = Path(room) / "config.json"
        config.write_text(json.dumps(decoder), encoding="utf-8")
        points = workflow.profile_llm(LlmEngineSettings(str(config), "llm"), requests, (1,), 10.0)
    write_file(replace(points, source="config.json"), FOLDER / "llm_points.json")


def write_strategy() -> None:
    """A strategy request and its outcome."""
    write_file(training_4b(), FOLDER / "strategy_request.json")
    write_file(workflow.strategy(training_4b()), FOLDER / "strategy.json")


def chain() -> PartitionRequest:
    """A chain of six operations with a shortcut, for two devices."""
    times = (1.0, 2.5, 0.5, 3.0, 1.5, 2.0)
    nodes = tuple(
        PartitionNode(str(number), time, memory_bytes=4096, output_bytes=1_000_000)
        for number, time in enumerate(times)
    )
    edges = tuple(GraphEdge(str(number), str(number + 1)) for number in range(5))
    devices = PartitionDevices(count=2, memory_bytes=2**30, link_gb_per_s=12.0)
    return PartitionRequest(nodes, (*edges, GraphEdge("0", "2")), devices)


def parts_of(source: str, cut: PartitionOutcome) -> StageManifest:
    """The manifest of the best candidate's parts; the parts themselves are deleted."""
    with tempfile.TemporaryDirectory() as room:
        folder = Path(room) / "parts"
        return export_stages(source, cut.candidates[0], folder, architecture_hash=cut.architecture_hash)


def routes() -> Routes:
    """Routes to the diamond's two parts, the second on slices of two hosts."""
    shape = (-1, 16)
    first = RouteStep("diamond-s0", ("x",), ("relu", "tanh"), (RouteServer("http://node0:8001", 120.0),))
    servers = (RouteServer("http://node0:8002", 60.0), RouteServer("http://node1:8001", 60.0))
    second = RouteStep("diamond-s1", ("relu", "tanh"), ("linear_4",), servers)
    outputs = (RoutedOutput("output_0", "FP32", shape, "linear_4"),)
    model = RoutedModel("diamond", (RoutedTensor("x", "FP32", shape),), outputs, (first, second))
    return Routes((model,))


def state_before(plan: PlanOutcome) -> HostState:
    """A host that runs part of the plan, something older in place of the rest, and a notebook; a second GPU is free."""
    (gpu,) = plan.gpus
    older = Tenant("bert", "whole", "whole", 1.0, 64, 1, 120.0, 3.0)
    notebook = ForeignTenant("a notebook (process 4711)")
    kept_slices = [StateInstance(i.profile, i.start, None, i.tenants) for i in gpu.slices if i.start < 2]
    other = StateInstance("2g.20gb", 2, None, (older,))
    busy = StateGpu("node0/gpu0", gpu.type, None, True, (*kept_slices, other))
    free = StateGpu("node0/gpu1", gpu.type, None, True, (StateInstance("1g.10gb", 6, None, (notebook,)),))
    return HostState((busy, free))


def write_days() -> None:
    """Three models over three windows of a day, their plans, these over a trace, and prices that are examples."""
    write_file(example_prices(), FOLDER / "prices.json")
    (FOLDER / "days").mkdir(exist_ok=True)
    (FOLDER / "days" / "prices.csv").write_text(write_price_csv(example_prices()), encoding="utf-8")
    request = day_request(small_mix())
    write_file(request, FOLDER / "days" / "three_windows_request.json")
    day = workflow.plan_day(request)
    write_file(day, FOLDER / "days" / "three_windows.json")
    rows = "\n".join(map(",".join, day_trace(request))) + "\n"
    (FOLDER / "days" / "three_windows_trace.csv").write_text(rows)
    replay = workflow.replay_day(
        request, day, read_demand_trace(rows), ReplaySettings(requests_per_model=50_000)
    )
    write_file(replay, FOLDER / "days" / "three_windows_replay.json")


def write_transition() -> None:
    """From a host's state to the plan of the walk."""
    _, plan = read_file(FOLDER / "plan.json", expected="torchsplit.plan")
    _, request = read_file(FOLDER / "plan_request.json", expected="torchsplit.plan_request")
    write_file(plan_transition(plan, state_before(plan), request=request), FOLDER / "transition.json")


def host_state() -> HostState:
    """Two GPUs of a host: one in MIG mode with tenants of all kinds and free slots, one on which nothing runs."""
    bert = Tenant("bert", "whole", "whole", 1.0, 8, 1, 120.0, 3.2)
    instances = (
        StateInstance("1g.10gb", 0, "MIG-9d1f1ef4-4c4b-5a5e-9a34-1d1f0a6f0b01", ()),
        StateInstance("2g.20gb", 2, "MIG-9d1f1ef4-4c4b-5a5e-9a34-1d1f0a6f0b02", (bert,)),
        StateInstance("3g.40gb", 4, None, (ForeignTenant("process 4711"),)),
    )
    first = StateGpu("node0/gpu0", "A100-80GB", "GPU-9d1f1ef4-4c4b-5a5e-9a34-1d1f0a6f0b00", True, instances)
    return HostState((first, StateGpu("node0/gpu1", "A100-80GB", mig_enabled=False)), "2026-11-27T01:49:51Z")


def write_host_state() -> None:
    """A state of a host."""
    write_file(host_state(), FOLDER / "host_state.json")


def write_evaluation() -> None:
    """Two cases of the published mix S1: first fit, and the planner."""
    first_fit = CaseKey("S1", "stock", "exclusive", "off", "equal", "first_fit")
    settings = EvaluationSettings(quick=True, requests_per_model=400, replications=2, time_limit_s=20.0)
    outcome = evaluate(keys=(first_fit, replace(first_fit, planner="planner")), settings=settings)
    write_file(outcome, FOLDER / "evaluation.json")


def write_mixes() -> None:
    """The published serving mixes."""
    for name, mix in published_mixes().items():
        write_file(mix, FOLDER / "mixes" / f"{name}.json")


def write_history() -> None:
    """A generated job history."""
    for name, text in zip(("sacct", "dcgm", "job_profiles"), (*history(), job_profiles()), strict=True):
        (FOLDER / "history" / f"{name}.csv").write_text(text, encoding="utf-8")


def write_routes() -> None:
    """Routes to the diamond's parts."""
    write_file(routes(), FOLDER / "routes.json")


def write_walk() -> None:
    """What the main job leaves at every step, from the graph to the plan."""
    source = "sample:diamond"
    graph = workflow.trace(source)
    types = ("A100-80GB",)
    _, profile = workflow.profile(source, graph=graph, device="cpu", batch_sizes=(1, 2), gpu_types=types)
    request = small_mix()
    cut = workflow.partition(source, profile, graph=graph, stages=2)
    for name, value in {
        "graph": graph,
        "profile": profile,
        "partition": cut,
        "stages": parts_of(source, cut),
        "partition_request": chain(),
        "plan_request": request,
        "plan": workflow.plan(request),
    }.items():
        write_file(value, FOLDER / f"{name}.json")


def write_llms() -> None:
    """Plan requests with LLMs."""
    for name, request in llm_requests().items():
        write_file(request, FOLDER / "llm" / f"{name}.json")


PARTS: Mapping[str, Callable[[], None]] = {
    "mixes": write_mixes,
    "fleets": write_fleet,
    "llm": write_llms,
    "samples": write_samples,
    "placements": write_placements,
    "simulation": write_simulation,
    "strategy": write_strategy,
    "history": write_history,
    "routes": write_routes,
    "transition": write_transition,
    "days": write_days,
    "host-state": write_host_state,
    "evaluation": write_evaluation,
    "measurement": write_measurement,
    "llm-points": write_llm_points,
    "walk": write_walk,
}
"""Functions by their option. The last three measure this host; the others measure nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, write in PARTS.items():
        parser.add_argument(f"--{name}", action="store_true", dest=name, help=write.__doc__)
    options = vars(parser.parse_args())
    asked = [write for name, write in PARTS.items() if options[name]]
    for write in asked or PARTS.values():
        write()


if __name__ == "__main__":
    main()
