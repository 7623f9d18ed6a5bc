"""The component dra: a claim for each GPU, pods that name its requests, and CEL that selects what was planned."""

import itertools
from typing import Any

import pytest
import yaml

from tests.support.deployment.asked import asked
from tests.support.deployment.cluster import (
    CLASSES,
    Device,
    Node,
    matches,
    plain_claim,
    published,
    selects,
)
from tests.support.deployment.helpers import plan_of, planned_gpu
from tests.support.deployment.kubernetes import checked, deployments, environment, manifests, texts
from tests.support.deployment.kubernetes import selects as service_selects
from torchsplit_core.deployment import custom_images, deploy
from torchsplit_core.deployment.formats.kubernetes_pods import ALLOCATED_BY, DRA, PLUGIN
from torchsplit_core.files import read_text
from torchsplit_core.values import WHOLE_GPU, PlanOutcome

FULL = [("1g.10gb", 6, "ocr"), ("4g.40gb", 0, "clip"), ("2g.20gb", 4, "bert")]


@pytest.fixture
def plan() -> PlanOutcome:
    """Two hosts with MIG, of which one has three GPUs of two types and one that is whole; cores; free slices."""
    return plan_of(
        planned_gpu("node0/gpu0", "A100-80GB", FULL),
        planned_gpu("node0/gpu1", "A100-80GB", [("3g.40gb", 0, None), ("3g.40gb", 4, "clip")]),
        planned_gpu("node0/gpu2", "H100-SXM5-80GB", [("1g.10gb", start, "ocr") for start in range(7)]),
        planned_gpu("node0/gpu3", "L4-24GB", [(WHOLE_GPU, 0, "bert")]),
        planned_gpu("node1/gpu0", "A100-80GB", [("7g.80gb", 0, "clip")]),
        planned_gpu("node1/gpu1", "A100-80GB", [("7g.80gb", 0, None)]),
        planned_gpu("node2/cpu0", "CPU-4c", [("4c", 0, "ocr")]),
    )


def claims_of(plan: PlanOutcome) -> dict[str, dict[str, Any]]:
    claims = yaml.safe_load_all(texts(plan)["kubernetes/dra/claims.yaml"])
    return {claim["metadata"]["name"]: claim for claim in claims}


def requests_of(claim: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in claim["spec"]["devices"]["requests"]}


def cluster(plan: PlanOutcome) -> Node:
    devices: list[Device] = []
    kinds = {}
    for gpu in plan.gpus:
        host, _, last = gpu.id.partition("/")
        if not gpu.type.startswith("CPU"):
            whole = gpu.slices[0].profile == WHOLE_GPU
            index = int(last.removeprefix("gpu"))
            devices += published(gpu.type, host, index, whole=whole)
            kinds[host, index] = gpu.type
    return Node(devices, kinds)


def test_each_gpu_that_serves_is_one_claim_of_all_its_slices_on_one_parent(plan):
    claims = claims_of(plan)
    assert {name: list(requests_of(claim)) for name, claim in claims.items()} == {
        "node0-gpu0": ["4g-40gb-0", "2g-20gb-0", "1g-10gb-0"],
        "node0-gpu1": ["3g-40gb-0", "3g-40gb-1"],
        "node0-gpu2": [f"1g-10gb-{number}" for number in range(7)],
        "node0-gpu3": ["gpu-0"],
        "node1-gpu0": ["7g-80gb-0"],
    }
    for name, claim in claims.items():
        parent = [{"requests": [], "matchAttribute": "gpu.nvidia.com/parentUUID"}]
        assert claim["spec"]["devices"].get("constraints", []) == ([] if name == "node0-gpu3" else parent)


def test_every_slice_with_tenants_is_a_pod_that_names_a_request_of_its_claim_and_no_two_the_same(plan):
    named = set()
    claims = claims_of(plan)
    maps = {row["metadata"]["name"]: row["data"] for row in manifests(plan) if row["kind"] == "ConfigMap"}
    for deployment in deployments(plan, (DRA,)):
        pod = deployment["spec"]["template"]["spec"]
        ((reference,), (container,)) = pod["resourceClaims"], pod["containers"]
        ((use,),) = (container["resources"]["claims"],)
        assert container["resources"].keys() == {"claims"} and deployment["spec"]["replicas"] == 1
        assert use["name"] == reference["name"]
        request = requests_of(claims[reference["resourceClaimName"]])[use["request"]]
        named.add((reference["resourceClaimName"], use["request"]))
        _, serves = read_text(maps[environment(deployment)["TORCHSPLIT_SERVER"]]["plan.json"])
        ((gpu,),) = (serves.gpus,)
        devices = published(gpu.type, whole=gpu.slices[0].profile == WHOLE_GPU)
        assert {
            dict(device.attributes).get("profile", "") for device in devices if matches(request, device)
        } == {gpu.slices[0].profile}
        ((term,),) = (affinity["nodeSelectorTerms"] for affinity in pod["affinity"]["nodeAffinity"].values())
        host = reference["resourceClaimName"].partition("-")[0]
        assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [host]}]}
    slices = sum(bool(item.tenants) for gpu in plan.gpus for item in gpu.slices if item.profile != "4c")
    assert len(named) == len(deployments(plan, (DRA,))) == slices


def test_the_readme_says_what_a_cluster_would_strand_and_when_claims_need_an_order(plan):
    text = texts(plan)["README.md"]
    assert "Not tried on a cluster" in text and "| dynamic MIG (alpha, off by default) | 0 to " in text
    assert "- `node1`: `LABEL` is `torchsplit-2`" in text and "first." not in text.partition("### As your")[2]
    ones = [("1g.10gb", start, "a") for start in range(7)]
    part = plan_of(planned_gpu("gpu0", "A100-80GB", ones), planned_gpu("gpu1", "A100-80GB", ones[:2]))
    assert "start those of the GPUs with more slices first." in texts(part)["README.md"].replace("\n", " ")


def test_the_claims_land_whatever_their_order_where_claims_of_single_pods_do_not(plan):
    claims = list(claims_of(plan).items())
    for order in itertools.permutations(claims, len(claims)):
        node = cluster(plan)
        for name, claim in order:
            placed = node.allocate(claim, name.partition("-")[0])
            assert placed is not None and len({device.gpu for device in placed}) == 1, name
        if order[0][0] == "node1-gpu0":
            break  # a fifth of all orders
    node = Node(published("A100-80GB"), {("", 0): "A100-80GB"})
    assert [node.allocate(plain_claim(profile)) is None for profile, *_ in FULL] == [False, True, False]


TYPES = {
    "A100-80GB": "1g.10gb", "H100-SXM5-80GB": "1g.10gb", "GH200-96GB": "1g.12gb", "H200-141GB": "1g.18gb",
    "RTX-PRO-6000-Blackwell-96GB": "1g.24gb", "RTX-PRO-6000-Blackwell-Max-Q-96GB": "1g.24gb",
    "L4-24GB": "", "L40S-48GB": "",
}  # fmt: skip
"""Types whose names or profiles are alike, each with a profile."""


def test_a_request_selects_its_profile_on_its_type_alone():
    whole = [(name, "", *published(name, whole=True)) for name in TYPES]
    slices = [
        (
            name,
            profile,
            next(device for device in published(name) if ("profile", profile) in device.attributes),
        )
        for name, usual in TYPES.items()
        for profile in (usual, {"A100-80GB": "1g.20gb", "GH200-96GB": "1g.24gb"}.get(name))
        if profile
    ]
    for name, usual in TYPES.items():
        for profile in {"", usual}:
            plan = plan_of(planned_gpu("gpu0", name, [(profile, 0, "a")]))
            (request,) = requests_of(*claims_of(plan).values()).values()
            selected = [row[:2] for row in (*whole, *slices) if matches(request, row[2])]
            assert selected == [(name, profile)]


def test_a_class_stands_for_each_resource_of_the_device_plugin(plan):
    classes = [row for row in manifests(plan) if row["kind"] == "DeviceClass"]
    wanted = {
        resource
        for deployment in deployments(plan, (PLUGIN,))
        for resource in deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    }
    resources = {row["spec"]["extendedResourceName"]: row for row in classes}
    assert len(resources) == len(classes)
    assert resources.keys() == wanted - {"nvidia.com/gpu"}
    devices = [*published("A100-80GB"), *published("L4-24GB", index=1, whole=True)]
    for resource, row in resources.items():
        (selector,) = row["spec"]["selectors"]
        profiles = {
            dict(device.attributes)["profile"]
            for device in devices
            if selects(selector["cel"]["expression"], device.attributes)
        }
        assert profiles == {resource.removeprefix("nvidia.com/mig-")}


def test_the_component_replaces_the_deployments_of_the_device_plugin_and_those_alone(plan):
    files = texts(plan)
    component = yaml.safe_load(files["kubernetes/dra/kustomization.yaml"])
    assert component["kind"] == "Component"
    assert {f"kubernetes/dra/{name}" for name in component["resources"]} == {
        name
        for name in files
        if name.startswith("kubernetes/dra/") and not name.endswith(("kustomization.yaml", "classes.yaml"))
    }
    (patch,) = component["patches"]
    key, value = patch["target"]["labelSelector"].split("=")
    assert (key, value) == (ALLOCATED_BY, PLUGIN) and "$patch: delete" in patch["patch"]
    replaced, others = deployments(plan, (PLUGIN,)), deployments(plan, ("",))
    assert sum(row["spec"]["replicas"] for row in replaced) == len(deployments(plan, (DRA,)))
    assert [row["metadata"]["name"] for row in others if "cpu" not in row["metadata"]["name"]] == []
    claimed = [*deployments(plan, (DRA,)), *others]
    for service in (row for row in manifests(plan) if row["kind"] == "Service"):
        assert sum(row["spec"]["replicas"] for row in claimed if service_selects(service, row)) == sum(
            row["spec"]["replicas"] for row in (*replaced, *others) if service_selects(service, row)
        )


def test_pods_of_own_images_name_their_requests_and_a_plan_of_cores_has_no_claims():
    slices = [("1g.10gb", 0, "a"), ("1g.10gb", 1, "a"), ("2g.20gb", 2, "b")]
    world = asked(plan_of(planned_gpu("gpu0", "A100-80GB", slices)))
    images = custom_images(world.request, {"a": "me/a:1"})
    files = deploy(world.plan, ["kubernetes"], world.request, world.manifests, images)
    documents = checked(*(file.text for file in files if file.name.startswith("kubernetes/dra/")))
    pods = [row["spec"]["template"]["spec"] for row in documents if row["kind"] == "Deployment"]
    assert sorted(pod["containers"][0]["resources"]["claims"][0]["request"] for pod in pods) == [
        "1g-10gb-0", "1g-10gb-1", "2g-20gb-0",
    ]  # fmt: skip
    assert sorted(pod["containers"][0]["image"].partition(":")[0] for pod in pods) == [
        "me/a", "me/a", "torchsplit-serve",
    ]  # fmt: skip
    assert all("affinity" not in pod for pod in pods)  # the ids name no host
    cores = texts(plan_of(planned_gpu("cpu0", "CPU-4c", [("4c", 0, "a")])))
    assert not [name for name in cores if "/dra/" in name] and "ResourceClaim" not in cores["README.md"]


def test_classes_of_the_driver_never_read_what_a_device_lacks():
    (whole,) = published("L4-24GB", whole=True)
    assert [selects(expression, whole.attributes) for expression in CLASSES.values()] == [True, False]
