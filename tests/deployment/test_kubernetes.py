"""The manifests against the published schemas of Kubernetes, and against the plan."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kubernetes_validate import utils

from tests.support.deployment.asked import asked
from tests.support.deployment.helpers import MIXED, FakeHost, plan_of, planned_gpu, tenant
from torchsplit_core.deployment import deploy
from torchsplit_core.deployment.formats.kubernetes_workload import ROUTER
from torchsplit_core.deployment.names import cluster_names
from torchsplit_core.files import read_text
from torchsplit_core.planning.verification.outcome import verify
from torchsplit_core.values import InputFault, PlannedGpu, PlannedSlice, PlanOutcome, PlanRequest, Tenant

DRAIN_S = 30
"""What a server may still need for what it has taken."""

RFC_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


VERSIONS = ("1.34", "1.35", "1.36", "1.37")


@pytest.fixture(scope="module", autouse=True)
def schemas_read_once() -> Iterator[None]:
    """The definitions of a version are megabytes, which the validator reads anew for each manifest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", cache(utils.schema_contents))
        yield


def texts(plan: PlanOutcome) -> dict[str, str]:
    return asked(plan).texts("kubernetes")


def manifests(plan: PlanOutcome) -> list[dict[str, Any]]:
    """Every manifest, each one checked."""
    found = [
        document
        for name, text in texts(plan).items()
        if name.endswith(".yaml")
        for document in yaml.safe_load_all(text)
    ]
    found = [document for document in found if "kustomize" not in document["apiVersion"]]
    for document in found:
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)
        assert RFC_1123.fullmatch(document["metadata"]["name"])
    assert len({(document["kind"], document["metadata"]["name"]) for document in found}) == len(found)
    return found


def deployments(plan: PlanOutcome) -> list[dict[str, Any]]:
    return [
        document
        for document in manifests(plan)
        if document["kind"] == "Deployment" and document["metadata"]["name"] != ROUTER
    ]


def served(plan: PlanOutcome, deployment: dict[str, Any]) -> tuple[PlanRequest, PlanOutcome]:
    """The request and the plan that the pods of a Deployment find where their entry point looks."""
    (pod,) = (deployment["spec"]["template"]["spec"],)
    ((mount,),) = ([one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "plan"],)
    assert mount["mountPath"] == f"/srv/servers/{environment(deployment)['TORCHSPLIT_SERVER']}"
    (volume,) = (one for one in pod["volumes"] if one["name"] == "plan")
    (config,) = (
        document
        for document in manifests(plan)
        if document["kind"] == "ConfigMap" and document["metadata"]["name"] == volume["configMap"]["name"]
    )
    _, request = read_text(config["data"]["request.json"], expected="torchsplit.plan_request")
    _, outcome = read_text(config["data"]["plan.json"], expected="torchsplit.plan")
    verify(request, outcome)
    return request, outcome


def tenants(plan: PlanOutcome, deployment: dict[str, Any]) -> tuple[Tenant, ...]:
    _, outcome = served(plan, deployment)
    ((item,),) = (gpu.slices for gpu in outcome.gpus)
    return item.tenants


def selects(service: dict[str, Any], deployment: dict[str, Any]) -> bool:
    return service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def environment(deployment: dict[str, Any]) -> dict[str, str]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {row["name"]: row["value"] for row in container["env"]}


def test_the_pods_take_exactly_the_slices_that_have_tenants(mixed_plan: PlanOutcome) -> None:
    found: Counter[tuple[str, str]] = Counter()
    for deployment in deployments(mixed_plan):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        ((resource, count),) = container["resources"]["limits"].items()
        assert count == 1
        assert container["image"].startswith("torchsplit-serve:")
        (one,) = tenants(mixed_plan, deployment)
        found[one.model, resource] += deployment["spec"]["replicas"]
    assert found == {
        ("ocr", "nvidia.com/mig-1g.10gb"): 2,
        ("bert", "nvidia.com/mig-2g.20gb"): 2,
        ("clip", "nvidia.com/mig-3g.40gb"): 2,
        ("clip", "nvidia.com/mig-7g.80gb"): 1,
    }


def test_pods_run_only_on_nodes_that_are_cut_for_them(mixed_plan: PlanOutcome) -> None:
    for deployment in deployments(mixed_plan):
        affinity = deployment["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        whole = deployment["metadata"]["annotations"]["torchsplit/gpu-type"] == "H100-SXM5-80GB"
        assert required == [
            {
                "matchExpressions": [
                    {
                        "key": "nvidia.com/mig.config",
                        "operator": "In",
                        "values": ["torchsplit-2" if whole else "torchsplit-1"],
                    }
                ]
            }
        ]
        assert deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0


def test_a_pod_serves_its_tenant_with_mps_for_several_processes() -> None:
    item = PlannedSlice("2g.20gb", 0, (tenant("8", batch_size=1_234_567, processes=3),))
    plan = plan_of(PlannedGpu("gpu0", "A100-80GB", True, (item,)))
    (deployment,) = deployments(plan)
    (one,) = tenants(plan, deployment)
    assert (one.model, one.batch_size, one.processes) == ("8", 1_234_567, 3)
    assert environment(deployment)["TORCHSPLIT_MPS"] == "1"
    single = plan_of(planned_gpu("gpu0", "A100-80GB", [("2g.20gb", 0, "8")]))
    assert "TORCHSPLIT_MPS" not in environment(*deployments(single))


def test_pods_are_probed_drained_and_scraped(mixed_plan: PlanOutcome) -> None:
    for deployment in deployments(mixed_plan):
        template = deployment["spec"]["template"]
        (container,) = template["spec"]["containers"]
        (port,) = container["ports"]
        for probe, path in (
            ("startupProbe", "ready"),
            ("readinessProbe", "ready"),
            ("livenessProbe", "live"),
        ):
            assert container[probe]["httpGet"] == {"path": f"/v2/health/{path}", "port": port["name"]}
        leaves = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert template["spec"]["terminationGracePeriodSeconds"] > leaves + DRAIN_S
        scraped = template["metadata"]["annotations"]
        assert (
            scraped["prometheus.io/port"]
            == str(port["containerPort"])
            == environment(deployment)["TORCHSPLIT_PORT"]
        )
        assert scraped["prometheus.io/scrape"] == "true"


def test_each_model_has_a_service_in_front_of_exactly_its_pods(mixed_plan: PlanOutcome) -> None:
    found = manifests(mixed_plan)
    services = {document["metadata"]["name"]: document for document in found if document["kind"] == "Service"}
    assert set(services) == {"model-ocr", "model-bert", "model-clip"}
    for name, service in services.items():
        behind = [one for one in deployments(mixed_plan) if selects(service, one)]
        assert behind
        for one in deployments(mixed_plan):
            (tenant_,) = tenants(mixed_plan, one)
            assert (one in behind) == (f"model-{tenant_.model}" == name)


def test_stages_are_wired_in_a_row_by_the_router() -> None:
    slices = tuple(
        PlannedSlice("1g.10gb", i, (tenant("bert", variant="cut", stage=f"s{i}"),)) for i in range(3)
    )
    plan = plan_of(PlannedGpu("gpu0", "A100-80GB", True, slices))
    found = manifests(plan)
    router = next(one for one in found if one["kind"] == "Deployment" and one["metadata"]["name"] == ROUTER)
    (entry,) = (one for one in found if one["kind"] == "Service" and selects(one, router))
    assert entry["metadata"]["name"] == "model-bert"
    (config,) = (one for one in found if one["kind"] == "ConfigMap" and "routes.json" in one["data"])
    (mount,) = router["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert environment(router)["TORCHSPLIT_ROUTES"] == f"{mount['mountPath']}/routes.json"
    _, routes = read_text(config["data"]["routes.json"], expected="torchsplit.routes")
    (model,) = routes.models
    assert [step.inputs for step in model.steps] == [("v0",), ("v1",), ("v2",)]
    services = {one["metadata"]["name"]: one for one in found if one["kind"] == "Service"}
    for number, step in enumerate(model.steps):
        (server,) = step.servers
        name, port = server.url.removeprefix("http://").split(":")
        assert services[name]["spec"]["ports"][0]["port"] == int(port)
        (behind,) = (one for one in deployments(plan) if selects(services[name], one))
        (one,) = tenants(plan, behind)
        assert one.model == step.model
        assert model.steps[number].model == step.model


def test_cores_are_asked_for_whole_and_with_their_memory() -> None:
    known = tuple(PlannedSlice("2c", start, (tenant("a", memory_gib=1.2),)) for start in (0, 2))
    unknown = (PlannedSlice("1c", 0, (tenant("a", memory_gib=None),)),)
    plan = plan_of(
        PlannedGpu("n0/cpu0", "CPU-4c", True, known), PlannedGpu("n1/cpu0", "CPU-1c", True, unknown)
    )
    held = [one["spec"]["template"]["spec"]["containers"][0]["resources"] for one in deployments(plan)]
    assert {"requests": {"cpu": 2, "memory": "3Gi"}, "limits": {"cpu": 2, "memory": "3Gi"}} in held
    assert {"requests": {"cpu": 1}, "limits": {"cpu": 1}} in held


def test_the_kustomization_names_every_manifest_and_takes_parts_from_a_volume(
    tmp_path: Path, mixed_plan: PlanOutcome
) -> None:
    files = texts(mixed_plan)
    found = yaml.safe_load(files["kubernetes/kustomization.yaml"])
    beside = {name.removeprefix("kubernetes/") for name in files if name.startswith("kubernetes/")}
    assert set(found["resources"]) == {
        name for name in beside if name.endswith(".yaml") and "kustomization" not in name
    } - {"mig-config.yaml"}
    (image,) = found["images"]
    assert {f"{image['name']}:{image['newTag']}"} == {
        one["spec"]["template"]["spec"]["containers"][0]["image"] for one in deployments(mixed_plan)
    }
    component = yaml.safe_load(files["kubernetes/models-volume/kustomization.yaml"])
    (patch,) = component["patches"]
    key, value = patch["target"]["labelSelector"].split("=")
    for one in deployments(mixed_plan):
        assert one["metadata"]["labels"][key] == value
        for operation in yaml.safe_load(patch["patch"]):
            *path, end = operation["path"].strip("/").split("/")
            place: Any = one
            for step in path:
                place = place[int(step) if isinstance(place, list) else step]
            assert end == "-"
            place.append(operation["value"])
        kubernetes_validate.validate(one, VERSIONS[-1], strict=True)


def test_stages_variants_and_batches_are_deployments_of_their_own() -> None:
    kinds = [
        {"stage": "s1"},
        {"stage": "s2"},
        {"model": "ocr"},
        {"stage": "s1", "batch_size": 16},
        {"stage": "s1", "processes": 2},
        {"stage": "s1"},
        {"stage": "s2", "throughput_rps": 60.0},
    ]
    slices = tuple(
        PlannedSlice("1g.10gb", i, (tenant(**{"model": "bert", **kind}),)) for i, kind in enumerate(kinds)
    )
    found = deployments(plan_of(PlannedGpu("gpu0", "A100-80GB", True, slices)))
    assert len({document["metadata"]["name"] for document in found}) == len(found) == 5
    assert sorted(document["spec"]["replicas"] for document in found) == [1, 1, 1, 2, 2]


def test_tenants_that_share_a_slice_are_one_pod() -> None:
    one, two = tenant("a", share=0.25, throughput_rps=30.0), tenant("b", share=0.75)
    slices = (PlannedSlice("3g.40gb", 0, (one, two)), PlannedSlice("3g.40gb", 4, (two, one)))
    plan = plan_of(PlannedGpu("gpu0", "A100-80GB", True, slices))
    (deployment,) = deployments(plan)
    assert deployment["spec"]["replicas"] == 2
    assert [(one.model, one.share) for one in tenants(plan, deployment)] == [("a", 0.25), ("b", 0.75)]
    services = [one for one in manifests(plan) if one["kind"] == "Service"]
    assert len(services) == 2
    assert all(selects(service, deployment) for service in services)


def test_the_config_map_holds_the_mig_parted_configuration(mixed_plan: PlanOutcome) -> None:
    (config_map,) = (
        document
        for document in manifests(mixed_plan)
        if document["kind"] == "ConfigMap" and "config.yaml" in document["data"]
    )
    inner = yaml.safe_load(config_map["data"]["config.yaml"])
    outer = yaml.safe_load(
        next(file.text for file in deploy(mixed_plan, ["mig-parted"]) if file.name == "mig-parted.yaml")
    )
    assert inner["mig-configs"].pop("all-disabled") == [{"devices": "all", "mig-enabled": False}]
    assert inner == outer


def kubectl(host: FakeHost) -> Path:
    """A kubectl that writes its arguments down."""
    log = host.directory / "kubectl.log"
    program = host.directory / "kubectl"
    program.write_text(
        f"#!/bin/bash\nprintf '%q ' \"$@\" >> {shlex.quote(str(log))}\necho >> {shlex.quote(str(log))}\n"
    )
    program.chmod(0o755)
    return log


def test_nodes_are_labelled_only_when_told_to(mixed_plan: PlanOutcome, fake_host: FakeHost) -> None:
    log = kubectl(fake_host)
    text = texts(mixed_plan)["kubernetes/label-nodes.sh"]
    shown = fake_host.run(text)
    assert shown.returncode == 0
    assert not log.exists()
    assert "label --overwrite node -- node1 nvidia.com/mig.config=torchsplit-2" in shown.stdout
    assert fake_host.run(text, "").returncode == 2
    assert fake_host.run(text, "--apply").returncode == 0
    assert [shlex.split(line) for line in log.read_text().splitlines()] == [
        ["label", "--overwrite", "node", "--", "node0", "nvidia.com/mig.config=torchsplit-1"],
        ["label", "--overwrite", "node", "--", "node1", "nvidia.com/mig.config=torchsplit-2"],
    ]


def test_a_plan_without_host_names_asks_for_the_node(fake_host: FakeHost) -> None:
    log = kubectl(fake_host)
    text = texts(plan_of(planned_gpu("gpu0", "A100-80GB", MIXED)))["kubernetes/label-nodes.sh"]
    asked = fake_host.run(text, "--apply")
    assert asked.returncode != 0
    assert "TORCHSPLIT_NODE" in asked.stderr
    assert not log.exists()
    assert fake_host.run(text, "--apply", TORCHSPLIT_NODE="rack-1.gpu7").returncode == 0
    assert shlex.split(log.read_text())[:5] == ["label", "--overwrite", "node", "--", "rack-1.gpu7"]


NO_NODES = [
    "--all", "--server=https://evil.example", "-l=gpu=true", "Node0", "node_0", "a b", "node0 node1", "node0-",
    ".node0", "a..b", "$(touch owned)", "a" * 64, ".".join(["a" * 60] * 5), "node0\n--all", "node0\n",
    "nödé", "a/b", "k=v",
]  # fmt: skip


@pytest.mark.parametrize("name", NO_NODES)
def test_what_is_no_node_is_refused_by_the_files_and_by_their_script(name: str, fake_host: FakeHost) -> None:
    with pytest.raises(InputFault, match="RFC 1123"):
        texts(plan_of(planned_gpu(f"{name}/gpu0", "A100-80GB", MIXED)))
    log = kubectl(fake_host)
    text = texts(plan_of(planned_gpu("gpu0", "A100-80GB", MIXED)))["kubernetes/label-nodes.sh"]
    refused = fake_host.run(text, "--apply", TORCHSPLIT_NODE=name)
    assert refused.returncode == 1
    assert "RFC 1123" in refused.stderr
    assert not log.exists()
    assert not (fake_host.directory / "owned").exists()


def test_even_without_the_check_a_node_is_no_option_of_kubectl(fake_host: FakeHost) -> None:
    log = kubectl(fake_host)
    text = texts(plan_of(planned_gpu("gpu0", "A100-80GB", MIXED)))["kubernetes/label-nodes.sh"]
    open_to_all = re.sub(r"(?m)^node_name=.*$", "node_name='.*'", text)
    assert open_to_all != text
    assert fake_host.run(open_to_all, "--apply", TORCHSPLIT_NODE="--all").returncode == 0
    called = shlex.split(log.read_text())
    assert called.index("--") < called.index("--all")


def test_the_other_formats_take_hosts_that_are_no_nodes() -> None:
    plan = plan_of(planned_gpu("Rack 1/gpu0", "A100-80GB", MIXED))
    assert {file.name for file in deploy(plan, ["mig-parted", "nvidia-smi"])} >= {"mig-parted.yaml"}


HOSTILE = [
    "Bert",
    "bert",
    "bert!",
    "${x}",
    "{{ x }}",
    "a: b # ---",
    "é" * 200,
    "ümlaut",
    "- x",
    "null",
]


def test_hostile_and_colliding_names_stay_apart() -> None:
    slices = [planned_gpu(f"gpu{i}", "A100-80GB", [("7g.80gb", 0, name)]) for i, name in enumerate(HOSTILE)]
    plan = plan_of(*slices)
    found = deployments(plan)
    assert [tenants(plan, document)[0].model for document in found] == HOSTILE
    assert len({document["metadata"]["name"] for document in found}) == len(HOSTILE)


@given(st.lists(st.tuples(st.text(max_size=80), st.text(max_size=80)), max_size=8))
def test_cluster_names_are_labels_unique_and_independent_of_order(keys: list[tuple[str, str]]) -> None:
    names = cluster_names({key: key for key in keys})
    assert all(RFC_1123.fullmatch(name) and len(name) <= 46 for name in names.values())
    assert len(set(names.values())) == len(names)
    assert cluster_names({key: key for key in reversed(keys)}) == names


@pytest.mark.parametrize("version", VERSIONS)
def test_the_validator_notices_a_wrong_manifest(version: str, mixed_plan: PlanOutcome) -> None:
    document = deployments(mixed_plan)[0]
    document["spec"]["replicas"] = "two"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, version, strict=True)
