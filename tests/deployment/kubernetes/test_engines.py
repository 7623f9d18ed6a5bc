"""Pods of vLLM: valid manifests, a Service over all engines of a model, one pod for a group of GPUs."""

from typing import Any

from tests.support.deployment.engines import with_engines
from tests.support.deployment.kubernetes import checked, selects


def manifests(*, claims: bool) -> list[dict[str, Any]]:
    texts = with_engines().texts("kubernetes")
    return checked(
        *(text for name, text in texts.items() if name.endswith(".yaml") and ("/dra/" in name) is claims)
    )


def engines(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        item
        for item in listed
        if item["kind"] == "Deployment"
        and item["spec"]["template"]["spec"]["containers"][0].get("command") == ["vllm", "serve"]
    ]


def pod(deployment: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def test_an_engine_asks_for_its_slice_and_a_group_for_its_gpus():
    there = engines(manifests(claims=False))
    limits = [pod(item)["containers"][0]["resources"]["limits"] for item in there]
    assert sorted(limits, key=str) == [{"nvidia.com/gpu": 2}, {"nvidia.com/mig-3g.40gb": 1}]
    memory = {
        str(pod(item)["containers"][0]["resources"]["limits"]): volume["emptyDir"]["sizeLimit"]
        for item in there
        for volume in pod(item)["volumes"]
        if volume["name"] == "shared-memory"
    }
    assert memory == {"{'nvidia.com/gpu': 2}": "8Gi", "{'nvidia.com/mig-3g.40gb': 1}": "1Gi"}
    assert [item["spec"]["replicas"] for item in there] == [1, 1]


def test_a_pod_has_time_to_load_and_is_watched_and_scraped():
    for item in engines(manifests(claims=False)):
        (container,) = pod(item)["containers"]
        start, ready, live = (container[f"{name}Probe"] for name in ("startup", "readiness", "liveness"))
        assert start["httpGet"]["path"] == "/v1/models"
        assert start["periodSeconds"] * start["failureThreshold"] >= 1800
        assert ready["httpGet"]["path"] == live["httpGet"]["path"] == "/health"
        notes = item["spec"]["template"]["metadata"]["annotations"]
        assert notes["prometheus.io/scrape"] == "true" and notes["prometheus.io/path"] == "/metrics"
        (token,) = (row for row in container["env"] if row["name"] == "HF_TOKEN")
        assert token["valueFrom"]["secretKeyRef"]["optional"] is True


def test_one_service_reaches_all_engines_of_a_model_and_nothing_else():
    files = manifests(claims=False)
    (service,) = (item for item in files if item["metadata"]["name"] == "model-chat")
    reached = [item for item in files if item["kind"] == "Deployment" and selects(service, item)]
    assert len(reached) == 2 and reached == engines(files)


def test_with_claims_a_group_claims_each_of_its_gpus():
    files = manifests(claims=True)
    named = {item["metadata"]["name"] for item in files if item["kind"] == "ResourceClaim"}
    sizes = []
    for item in engines(files):
        claims = {row["name"]: row["resourceClaimName"] for row in pod(item)["resourceClaims"]}
        used = [row["name"] for row in pod(item)["containers"][0]["resources"]["claims"]]
        assert set(used) == set(claims) and set(claims.values()) <= named
        assert len(set(claims.values())) == len(claims)
        sizes.append(len(claims))
    assert sorted(sizes) == [1, 2]
