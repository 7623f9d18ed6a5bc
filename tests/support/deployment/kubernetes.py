"""The manifests of a plan, checked against the published schemas of Kubernetes, and what their pods find."""

import re
from copy import deepcopy
from functools import cache
from typing import Any

import kubernetes_validate
import yaml

from tests.support.deployment.asked import asked
from torchsplit_core.deployment.formats.kubernetes_pods import ALLOCATED_BY, PLUGIN
from torchsplit_core.deployment.formats.kubernetes_workload import ROUTER
from torchsplit_core.files import read_text
from torchsplit_core.planning.verification.outcome import verify
from torchsplit_core.values import PlanOutcome, PlanRequest, Tenant

RFC_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
VERSIONS = ("1.34", "1.35", "1.36", "1.37")


def texts(plan: PlanOutcome) -> dict[str, str]:
    return asked(plan).texts("kubernetes")


def manifests(plan: PlanOutcome) -> list[dict[str, Any]]:
    """Every manifest, each one checked; the caller's own."""
    return deepcopy(checked(*(text for name, text in texts(plan).items() if name.endswith(".yaml"))))


@cache
def checked(*files: str) -> list[dict[str, Any]]:
    """The manifests of these texts, each one checked. Once for a plan: a look at one pod asks for all manifests."""
    found = [document for text in files for document in yaml.safe_load_all(text)]
    found = [document for document in found if "kustomize" not in document["apiVersion"]]
    for document in found:
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)
        assert all(map(RFC_1123.fullmatch, document["metadata"]["name"].split(".")))
    assert len({(document["kind"], document["metadata"]["name"]) for document in found}) == len(found)
    return found


def deployments(plan: PlanOutcome, allocated_by: tuple[str, ...] = (PLUGIN, "")) -> list[dict[str, Any]]:
    """Those of servers: of the device plugin and on cores, or of the component dra."""
    return [
        document
        for document in manifests(plan)
        if document["kind"] == "Deployment"
        and document["metadata"]["name"] != ROUTER
        and document["metadata"]["labels"].get(ALLOCATED_BY, "") in allocated_by
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
    wanted, found = service["spec"]["selector"], deployment["spec"]["template"]["metadata"]["labels"]
    return bool(wanted.items() <= found.items())


def environment(deployment: dict[str, Any]) -> dict[str, str]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {row["name"]: row["value"] for row in container["env"]}
