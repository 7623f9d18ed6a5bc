"""The search over equal devices: equal to a look at every choice, and what it says of what it refuses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import get_args

import pytest

from tests.support.seeds import repeated
from torchsplit_core.hardware.peaks import peak_names, peaks
from torchsplit_core.strategy.cost_model.estimate import estimate
from torchsplit_core.strategy.cost_model.memory import activation_bytes, state_bytes
from torchsplit_core.strategy.search import search_strategy
from torchsplit_core.strategy.search.descriptions import describe_choices, describe_slowdown
from torchsplit_core.strategy.search.homogeneous import NOT_RUN, HomogeneousSearch, rank
from torchsplit_core.strategy.search.machines import read_fleet
from torchsplit_core.strategy.search.software import EAGER, SOFTWARE
from torchsplit_core.strategy.search.space import SearchSpace
from torchsplit_core.strategy.supported import EXPORT, RUNNERS, TRAIN, Runnable, Runner, refusals, traits_of
from torchsplit_core.strategy.table_input.errors import RowError
from torchsplit_core.strategy.table_input.gpu_text import read_machine
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.outcome import StrategyCandidate
from torchsplit_core.values.strategy.request import (
    Choice,
    SourceSizes,
    StrategyFix,
    StrategyNodes,
    StrategyRequest,
    TransformerSizes,
)
from torchsplit_core.values.training import ParallelConfig, StepEstimate, TrainingJob

EVERYTHING: tuple[Choice, ...] = get_args(Choice)
GPT = TransformerSizes(24, 2048, 16, 16, 8192, 50257, 2048)
MIXTURE = TransformerSizes(12, 1024, 16, 4, 2816, 32000, 1024, gated=True, experts=8, experts_per_token=2)
LLAMA70 = TransformerSizes(80, 8192, 64, 8, 28672, 128256, 8192, gated=True, tied_embeddings=False)


def asked(
    model: TransformerSizes = GPT,
    nodes: int = 2,
    per_node: int = 4,
    kind: str = "A100-40GB",
    batch: int = 32,
    *,
    precision: str = "bf16",
    top_k: int = 5,
    may_need: tuple[Choice, ...] = EVERYTHING,
    **fix: object,
) -> StrategyRequest:
    """A request that may need every choice: whether something runs is asked where `may_need` says so."""
    return StrategyRequest(
        model,
        (StrategyNodes(nodes, per_node, kind),),
        TrainingJob(batch, precision),  # type: ignore[arg-type]
        StrategyFix(**fix),  # type: ignore[arg-type]
        top_k,
        may_need=may_need,
    )


def searched(request: StrategyRequest) -> tuple[HomogeneousSearch, int]:
    (machine,) = read_fleet(request.fleet, request.training.precision)
    assert isinstance(request.model, TransformerSizes)
    runnable = Runnable(request.training.precision, traits_of(request.model), request.may_need)
    space = SearchSpace(
        request.model.transformer(), request.training, machine.cluster.gpus_per_node, request.fix, runnable
    )
    return HomogeneousSearch(machine, space), machine.devices


def every(
    search: HomogeneousSearch, devices: int
) -> tuple[list[tuple[ParallelConfig, StepEstimate]], Counter[str]]:
    """All choices that fit in their order, and how many were refused: none is ruled out by a bound."""
    fitting, refused = [], Counter[str]()
    space = search.space
    runnable = space.runnable
    for choices in replace(space, runnable=runnable.anything()).choices(devices):
        step = search.estimate(choices)
        if not runnable.includes(choices):
            refused[NOT_RUN] += 1
        elif search.host_bytes(choices) > search.machine.host_bytes:
            refused["host memory"] += 1
        elif not step.fits:
            refused["memory"] += 1
        else:
            fitting.append((choices, step))
    return sorted(fitting, key=lambda one: rank(*one)), refused


@pytest.mark.slow
@repeated(
    "request_",
    [
        asked(),
        asked(kind="T4-16GB", precision="fp16", per_node=2),
        asked(GPT, nodes=3, per_node=2, batch=36),
        asked(nodes=1, per_node=1, kind="L4-24GB", batch=6),
        asked(LLAMA70, nodes=4, per_node=8, kind="H100-SXM5-80GB", batch=64, tensor=8, recompute="full"),
        asked(micro_batch=2, shard="fsdp"),
        asked(may_need=()),
        asked(nodes=1, per_node=8, may_need=("context",), offload="none"),
        asked(MIXTURE, nodes=1, per_node=8, batch=24, may_need=()),
        asked(MIXTURE, nodes=1, per_node=8, batch=24),
        asked(MIXTURE, nodes=1, per_node=8, batch=24, may_need=("expert", "shard")),
    ],
    kept=8,
)
def test_the_search_is_equal_to_a_look_at_every_choice(request_: StrategyRequest) -> None:
    search, devices = searched(request_)
    fitting, refused = every(search, devices)
    found = search.best(devices, 7)
    assert found.best == fitting[:7] and fitting
    said = {reason: one.count for reason, one in found.refused.items()}
    layouts = Counter(broken for _, broken in search.space.layouts(devices) if broken)
    assert said == refused | layouts
    assert found.considered == len(fitting) + sum(said.values())


def test_most_choices_are_ruled_out_by_bounds() -> None:
    search, devices = searched(asked())
    found = search.best(devices, 3)
    assert found.estimated < 0.2 * found.considered


def test_no_choice_is_below_its_bound() -> None:
    search, devices = searched(asked(MIXTURE, nodes=1, per_node=8, batch=24))
    for choices in search.space.choices(devices):
        assert search.bound(choices) <= search.estimate(choices).seconds


def test_memory_is_the_sum_that_the_search_counts_with() -> None:
    search, devices = searched(asked(MIXTURE))
    for choices in search.space.choices(devices):
        memory = search.estimate(choices).memory
        model, job = search.space.model, search.space.job
        states = sum(state_bytes(model, choices, job, SOFTWARE, 4))
        assert memory.total == pytest.approx(
            states + activation_bytes(model, choices, job, SOFTWARE) + memory.reserve, rel=1e-12
        )


def test_candidates_say_what_their_step_takes() -> None:
    outcome = search_strategy(asked())
    assert outcome.status == "optimal" and len(outcome.candidates) == 5
    seconds = [one.seconds_per_step for one in outcome.candidates]
    assert seconds == sorted(seconds) and outcome.bound_s == seconds[0]
    for one in outcome.candidates:
        assert one.data * one.tensor * one.pipeline * one.context == one.devices == 8
        assert one.data * one.micro_batch * one.micro_batches == 32 and one.batch_per_device * one.data == 32
        parts = one.parts_s
        total = (
            parts.compute
            + parts.tensor_communication
            + parts.pipeline_bubble
            + parts.pipeline_communication
            + parts.data_communication
            + parts.optimizer
        )
        assert total == pytest.approx(one.seconds_per_step)
        assert one.tokens_per_s == pytest.approx(32 * 2048 / one.seconds_per_step)
        assert one.low_s < one.seconds_per_step < one.high_s and 0.1 < one.mfu < 0.8
        assert one.fits and one.memory_gib.total <= 40 * 0.98 and one.basis == "estimated"
    loss = seconds[1] / seconds[0] - 1
    assert describe_slowdown(loss) in outcome.message


def test_a_fix_is_kept_and_never_faster() -> None:
    free = search_strategy(asked()).candidates[0].seconds_per_step
    for fix in (
        {"tensor": 4},
        {"micro_batch": 1},
        {"recompute": "full"},
        {"offload": "optimizer"},
        {"shard": "hsdp"},
    ):
        outcome = search_strategy(asked(**fix))
        (name, value), *_ = fix.items()
        assert all(getattr(one, name) == value for one in outcome.candidates)
        assert outcome.candidates[0].seconds_per_step >= free


def test_where_nothing_fits_it_says_what_is_missing_and_the_smallest_fleet_that_would_do() -> None:
    request = asked(LLAMA70, nodes=1, per_node=8, kind="A100-40GB", batch=64)
    outcome = search_strategy(request)
    assert outcome.status == "infeasible" and outcome.candidates == () and outcome.bound_s is None
    assert "GiB more" in outcome.message
    words = outcome.message.split("smallest fleet of A100-40GB that would do has ")[1]
    nodes = int(words.split()[0])
    assert nodes > 1
    larger = search_strategy(replace(request, fleet=(StrategyNodes(nodes, 8, "A100-40GB"),)))
    assert larger.status == "optimal"
    before, devices = searched(replace(request, fleet=(StrategyNodes(nodes - 1, 8, "A100-40GB"),)))
    assert not before.best(devices, 1).best


def test_the_nearest_refused_lacks_what_it_says() -> None:
    outcome = search_strategy(asked(kind="T4-16GB", precision="fp16"))
    (memory,) = [one for one in outcome.refused if one.reason == "memory"]
    search, devices = searched(asked(kind="T4-16GB", precision="fp16"))
    lacking = [
        search.estimate(choices).memory.total - 0.98 * 16 * 2**30
        for choices in search.space.choices(devices)
        if search.host_bytes(choices) <= search.machine.host_bytes
    ]
    assert memory.missing_gib == pytest.approx(min(one for one in lacking if one > 0) / 2**30)
    assert memory.nearest is not None and f"{memory.missing_gib:.3g} GiB more" in memory.nearest


def test_devices_that_do_not_divide_stay_idle_and_it_says_so() -> None:
    outcome = search_strategy(asked(nodes=1, per_node=29))
    assert outcome.status == "optimal" and outcome.candidates[0].devices < 29
    assert "stay idle" in outcome.message


@pytest.mark.parametrize(
    ("request_", "where"),
    [
        (asked(replace(GPT, heads=15)), "model.heads"),
        (asked(replace(GPT, kv_heads=3)), "model.kv_heads"),
        (asked(tensor=3), "fix.tensor"),
        (asked(data=3), "fix.data"),
        (asked(micro_batch=5), "fix.micro_batch"),
        (asked(pipeline=8, interleave=4), "fix.pipeline"),
        (asked(expert=2), "fix.expert"),
        (asked(data=4, tensor=4), "fix"),
        (asked(data=16), "fix.data"),
        (asked(tensor=1, sequence_parallel=True), "fix"),
        (asked(pipeline=1, interleave=2), "fix"),
        (asked(shard="none", offload="parameters"), "fix"),
        (asked(pipeline=2, shard="zero2"), "fix"),
        (asked(data=1, context=1, shard="zero1"), "fix"),
        (asked(kind="A100-90GB"), "fleet[0].type"),
        (asked(kind="CPU-8c.64gib"), "fleet[0].type"),
        (asked(kind="V100-SXM2-32GB"), "training.precision"),
        (asked(precision="fp8"), "training.precision"),
        (replace(asked(), fleet=(StrategyNodes(2, 4, "A100-40GB", None, 0.0),)), "fleet[0].between_gb_per_s"),
        (replace(asked(), fleet=(StrategyNodes(2, 4, "A100-40GB", 0.0),)), "fleet[0].inside_gb_per_s"),
        (replace(asked(), fleet=()), "fleet"),
        (replace(asked(), model=SourceSizes("sample:bert")), "model.kind"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(request_: StrategyRequest, where: str) -> None:
    with pytest.raises(InputFault) as fault:
        search_strategy(request_)
    assert fault.value.where == where


def test_fixes_that_contradict_are_named_and_no_others() -> None:
    with pytest.raises(InputFault, match="contradict") as fault:
        search_strategy(asked(tensor=1, sequence_parallel=True, recompute="full", micro_batch=2))
    assert "tensor" in fault.value.problem and "sequence_parallel" in fault.value.problem
    assert "recompute" not in fault.value.problem and "micro_batch" not in fault.value.problem


def test_every_gpu_of_the_catalogue_is_read_as_itself() -> None:
    half = [name for name in peak_names() if peaks(name).bf16_tflops or peaks(name).fp16_tflops]
    assert [read_machine(name)[0].name for name in half] == half and len(half) > 20
    for name in set(peak_names()) - set(half):
        with pytest.raises(RowError, match=f"are published of {name}"):
            read_machine(name)


def test_a_link_of_zero_that_joins_nothing_is_no_fault() -> None:
    one = replace(asked(), fleet=(StrategyNodes(1, 1, "A100-80GB", 0.0, 0.0),))
    assert search_strategy(one).status == "optimal"


def runs(candidate: StrategyCandidate, request: StrategyRequest, runner: Runner) -> bool:
    return not refusals(candidate.choices, request.training.precision, runner, traits_of(request.model))


def test_what_is_found_runs_and_the_best_that_does_not_is_named() -> None:
    request = asked(MIXTURE, nodes=1, per_node=8, batch=24, top_k=50, may_need=())
    outcome = search_strategy(request)
    assert len(outcome.candidates) == 50
    assert all(
        runs(candidate, request, "train") and runs(candidate, request, "export")
        for candidate in outcome.candidates
    )
    (not_run,) = [refusal for refusal in outcome.refused if refusal.reason == NOT_RUN]
    every_choice = search_strategy(replace(request, may_need=EVERYTHING, top_k=10000)).candidates
    best = next(
        candidate
        for candidate in every_choice
        if not runs(candidate, request, "train") or not runs(candidate, request, "export")
    )
    assert not_run.nearest == f"{describe_choices(best.choices)}: {best.seconds_per_step:.3g} s/step"
    assert not_run.count > 100


def test_a_search_for_one_runner_has_nothing_that_only_the_other_carries_out() -> None:
    tensors = asked(MIXTURE, tensor=2, expert=1, may_need=())
    for runners in (RUNNERS, EXPORT):
        with pytest.raises(InputFault, match="which no exported file carries out yet: "):
            search_strategy(tensors, runners=runners)
    candidates = search_strategy(replace(tensors, top_k=50), runners=TRAIN).candidates
    assert candidates and all(runs(candidate, tensors, "train") for candidate in candidates)


@pytest.mark.parametrize(
    ("fix", "choice"),
    [
        ({"offload": "optimizer"}, "offload"),
        ({"offload": "optimizer", "tensor": 2, "micro_batch": 1}, "offload"),
    ],
)
def test_a_fix_that_does_not_run_is_refused_unless_the_request_may_need_it(
    fix: dict[str, object], choice: Choice
) -> None:
    with pytest.raises(InputFault) as fault:
        search_strategy(asked(may_need=(), **fix))
    assert fault.value.where == f"fix.{choice}" and f'add "{choice}" to may_need' in fault.value.remedy
    (name, value), *_ = fix.items()
    candidates = search_strategy(asked(may_need=(choice,), **fix)).candidates
    assert candidates and all(getattr(candidate, name) == value for candidate in candidates)


def test_a_precision_that_does_not_run_is_refused_unless_the_request_may_need_it() -> None:
    with pytest.raises(InputFault, match="'fp16', which no exported file carries out") as fault:
        search_strategy(asked(precision="fp16", may_need=()))
    assert fault.value.where == "training.precision"
    assert search_strategy(asked(precision="fp16", may_need=("precision",))).candidates


@pytest.mark.parametrize(
    ("kind", "model", "fix", "software"),
    [
        ("A100-40GB", GPT, {}, SOFTWARE),
        ("A100-40GB", GPT, {"context": 2}, SOFTWARE),
        ("A100-40GB", GPT, {"tensor": 2}, EAGER),
        ("A100-40GB", MIXTURE, {}, EAGER),
        ("CPU-64c", GPT, {"tensor": 2}, SOFTWARE),
    ],
)
def test_layers_that_a_file_does_not_compile_are_estimated_without_a_compiler(kind, model, fix, software):
    request = asked(model, kind=kind, precision="fp32", top_k=1, **{"tensor": 1, "context": 1, **fix})
    candidate = search_strategy(request).candidates[0]
    machine = read_fleet(request.fleet, "fp32")[0]
    given = (model.transformer(), machine.device, machine.cluster, candidate.choices, request.training)
    seconds = {each: estimate(*given, each).seconds for each in (SOFTWARE, EAGER)}
    assert candidate.seconds_per_step == seconds[software]
    assert seconds[SOFTWARE] < seconds[EAGER]
