"""Every slice as a server of its own: a plan with one slice, true to the whole plan's figures."""

from dataclasses import replace

import pytest

from tests.support.deployment.asked import asked
from tests.support.deployment.helpers import plan_of, planned_gpu, tenant
from torchsplit_core.deployment import deploy, models_to_write
from torchsplit_core.deployment.hosts import group_by_host
from torchsplit_core.deployment.server_plans import server_plan
from torchsplit_core.deployment.workload import Workload, build_workload
from torchsplit_core.files import read_text
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.planning.verification.outcome import verify
from torchsplit_core.values import InputFault, PlanOutcome, StageValue

ALL = ("kubernetes", "ray-serve", "triton", "compose", "systemd", "slurm")


def workload(plan: PlanOutcome) -> Workload:
    found = asked(plan)
    return build_workload(found.plan, found.request, group_by_host(found.plan), found.manifests, {})


def shared_plan() -> PlanOutcome:
    """A slice that two models share, one that a model has for itself with two processes, cores, and a whole GPU."""
    one, two = tenant("a", share=0.25, throughput_rps=30.0), tenant("b", share=0.75, throughput_rps=90.0)
    slices = (("3g.40gb", 0, (one, two)), ("3g.40gb", 4, tenant("a", processes=2)))
    cores = tuple(("2c", start, tenant("c", memory_gib=0.5)) for start in (0, 2))
    return plan_of(
        planned_gpu("gpu0", "A100-80GB", slices),
        planned_gpu("cpu0", "CPU-4c", cores),
        planned_gpu("gpu1", "L4-24GB", [("", 0, tenant("c"))]),
    )


def test_each_kind_of_server_is_a_plan_that_holds_its_own_check():
    made = workload(shared_plan())
    assert len(made.servers) == 5
    assert len(made.kinds) == 4
    for kind in made.kinds:
        request, plan = server_plan(kind, made)
        validate(request)
        verify(request, plan)
        (gpu,) = plan.gpus
        (item,) = gpu.slices
        assert [tenant.share for tenant in item.tenants] == [tenant.share for tenant in kind.tenants]
        assert [one.throughput_rps for one in item.tenants] == [one.throughput_rps for one in kind.tenants]
        assert all(
            model.source == job.part.file for model, job in zip(request.models, kind.instances, strict=True)
        )
    cores = [server for server in made.servers if server.kind.cores]
    assert [server.cores for server in cores] == ["0-1", "2-3"]
    assert cores[0].kind is cores[1].kind
    _, plan = server_plan(cores[0].kind, made)
    assert [gpu.type for gpu in plan.gpus] == ["CPU-2c"]
    assert [server.kind.needs_mps for server in made.servers].count(True) == 1


def test_entries_of_one_host_have_cores_that_follow_on_one_another():
    slices = (("1c", 1, tenant("c")),)
    made = workload(plan_of(planned_gpu("cpu0", "CPU-2c", slices), planned_gpu("cpu1", "CPU-2c", slices)))
    assert [server.cores for server in made.servers] == ["1-1", "3-3"]


def test_ports_are_a_hosts_own():
    made = workload(plan_of(
        planned_gpu("n0/gpu0", "A100-80GB", [("1g.10gb", 0, "a"), ("1g.10gb", 1, "a")]),
        planned_gpu("n1/gpu0", "A100-80GB", [("1g.10gb", 0, "a")]),
    ))  # fmt: skip
    assert [(server.host.name, server.port) for server in made.servers] == [
        ("n0", 8001), ("n0", 8002), ("n1", 8001),
    ]  # fmt: skip


def test_a_stage_named_like_a_model_is_called_otherwise():
    slices = (
        ("1g.10gb", 0, tenant("bert", variant="cut", stage="s1")),
        ("1g.10gb", 1, tenant("bert", variant="cut", stage="s2")),
        ("1g.10gb", 2, tenant("bert-s1")),
    )
    made = workload(plan_of(planned_gpu("gpu0", "A100-80GB", slices)))
    parts = [job.part for kind in made.kinds for job in kind.instances]
    assert len({part.name for part in parts}) == 3
    assert len({part.label for part in parts}) == 3
    assert [[step.stage for step in route.steps] for route in made.routes] == [["s1", "s2"], ["whole"]]


@pytest.mark.parametrize("name", ALL)
def test_without_a_request_or_a_source_the_models_are_named(name):
    plan = plan_of(planned_gpu("gpu0", "A100-80GB", [("7g.80gb", 0, "clip")]))
    with pytest.raises(InputFault, match=r"clip.*--request"):
        deploy(plan, [name])
    deployment = asked(plan)
    with pytest.raises(InputFault, match="the plan answers"):
        models_to_write(plan, [name], deployment.request)
    for source in (None, "library:a100", "import:x"):
        models = tuple(replace(model, source=source) for model in deployment.request.models)
        request = replace(deployment.request, models=models)
        answered = replace(plan, request_sha256=request_hash(request))
        if name in ("ray-serve", "triton"):
            with pytest.raises(InputFault, match=r"leaves out all of this plan: what runs in an image.*clip"):
                models_to_write(answered, [name], request)
        else:
            assert models_to_write(answered, [name], request) == ()


def test_a_cut_without_nodes_is_named():
    slices = tuple(("1g.10gb", i, tenant("bert", variant="cut", stage=f"s{i}")) for i in range(2))
    found = asked(plan_of(planned_gpu("gpu0", "A100-80GB", slices)))
    (model,) = found.request.models
    (variant,) = model.variants
    stages = tuple(replace(stage, nodes=()) for stage in variant.stages)
    request = replace(found.request, models=(replace(model, variants=(replace(variant, stages=stages),)),))
    with pytest.raises(InputFault, match=r"bert.*s0: nodes"):
        models_to_write(replace(found.plan, request_sha256=request_hash(request)), ["triton"], request)


def test_layouts_need_no_request():
    plan = plan_of(planned_gpu("gpu0", "A100-80GB", [("7g.80gb", 0, "clip")]))
    assert models_to_write(plan, ["mig-parted", "nvidia-smi"], None) == ()


@pytest.mark.parametrize("value", [
    StageValue("mask", "tensor", "float32", (1, 8), 32),
    StageValue("scale", "tensor", "float32", (), 4),
    StageValue("length", "int", bytes=8),
])  # fmt: skip
def test_a_value_without_a_batch_is_named(value):
    deployment = asked(plan_of(planned_gpu("gpu0", "A100-80GB", [("7g.80gb", 0, "clip")])))
    manifest = deployment.manifests["clip", "whole"]
    part = replace(manifest.stages[0], inputs=(value,))
    deployment.manifests["clip", "whole"] = replace(manifest, stages=(part,))
    with pytest.raises(InputFault, match=rf"clip.*{value.name}"):
        deployment.files("kubernetes")


def test_files_of_servers_are_read_back_as_they_were_written():
    texts = asked(shared_plan()).texts("kubernetes")
    plans = [text for name, text in texts.items() if name.endswith("/plan.json")]
    assert len(plans) == 4
    for text in plans:
        _, plan = read_text(text, expected="torchsplit.plan")
        assert plan.status == "feasible"


def test_a_host_has_so_many_ports(monkeypatch):
    monkeypatch.setattr("torchsplit_core.deployment.workload.MOST_SERVERS_A_HOST", 1)
    with pytest.raises(InputFault, match="more than 1 servers"):
        workload(plan_of(planned_gpu("gpu0", "A100-80GB", [("1g.10gb", 0, "a"), ("1g.10gb", 1, "a")])))
