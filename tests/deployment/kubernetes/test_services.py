"""What stands before the pods and around them: services, the router of cut models, the kustomization."""

import kubernetes_validate
import yaml

from tests.support.deployment.helpers import plan_of, planned_gpu, tenant
from tests.support.deployment.kubernetes import (
    VERSIONS,
    deployments,
    environment,
    manifests,
    selects,
    tenants,
    texts,
)
from torchsplit_core.deployment.formats.kubernetes_workload import ROUTER
from torchsplit_core.files import read_text


def test_each_model_has_a_service_in_front_of_exactly_its_pods(mixed_plan):
    found = manifests(mixed_plan)
    services = {document["metadata"]["name"]: document for document in found if document["kind"] == "Service"}
    assert set(services) == {"model-ocr", "model-bert", "model-clip"}
    for name, service in services.items():
        behind = [deployment for deployment in deployments(mixed_plan) if selects(service, deployment)]
        assert behind
        for one in deployments(mixed_plan):
            (tenant_,) = tenants(mixed_plan, one)
            assert (one in behind) == (f"model-{tenant_.model}" == name)


def test_stages_are_wired_in_a_row_by_the_router():
    slices = tuple(("1g.10gb", i, tenant("bert", variant="cut", stage=f"s{i}")) for i in range(3))
    plan = plan_of(planned_gpu("gpu0", "A100-80GB", slices))
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
        (behind,) = (deployment for deployment in deployments(plan) if selects(services[name], deployment))
        (one,) = tenants(plan, behind)
        assert one.model == step.model
        assert model.steps[number].model == step.model


def test_the_kustomization_names_every_manifest_and_takes_parts_from_a_volume(tmp_path, mixed_plan):
    files = texts(mixed_plan)
    document = yaml.safe_load(files["kubernetes/kustomization.yaml"])
    beside = {name.removeprefix("kubernetes/") for name in files if name.count("/") == 1}
    assert set(document["resources"]) == {
        name for name in beside if name.endswith(".yaml") and "kustomization" not in name
    } - {"mig-config.yaml"}
    (image,) = document["images"]
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
            place = one
            for step in path:
                place = place[int(step) if isinstance(place, list) else step]
            assert end == "-"
            place.append(operation["value"])
        kubernetes_validate.validate(one, VERSIONS[-1], strict=True)
