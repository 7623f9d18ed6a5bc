"""Which pods there are and where they run: by slice, tenants and cores; what they serve; the schemas themselves."""

from collections import Counter

import kubernetes_validate
import pytest

from tests.support.deployment.helpers import plan_of, planned_gpu, tenant
from tests.support.deployment.kubernetes import (
    VERSIONS,
    deployments,
    environment,
    manifests,
    selects,
    tenants,
)

DRAIN_S = 30
"""What a server may still need for what it has taken."""


def test_the_pods_take_exactly_the_slices_that_have_tenants(mixed_plan):
    found = Counter()
    for deployment in deployments(mixed_plan):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        ((resource, count),) = container["resources"]["limits"].items()
        assert count == 1
        assert container["image"].startswith("torchsplit-serve:")
        (one,) = tenants(mixed_plan, deployment)
        found[one.model, resource] += deployment["spec"]["replicas"]
    assert found == {
        ("ocr", "nvidia.com/mig-1g.10gb"): 2, ("bert", "nvidia.com/mig-2g.20gb"): 2,
        ("clip", "nvidia.com/mig-3g.40gb"): 2, ("clip", "nvidia.com/mig-7g.80gb"): 1,
    }  # fmt: skip


def test_pods_run_only_on_nodes_that_are_cut_for_them(mixed_plan):
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


def test_a_pod_serves_its_tenant_with_mps_for_several_processes():
    item = ("2g.20gb", 0, tenant("8", batch_size=1_234_567, processes=3))
    plan = plan_of(planned_gpu("gpu0", "A100-80GB", [item]))
    (deployment,) = deployments(plan)
    (one,) = tenants(plan, deployment)
    assert (one.model, one.batch_size, one.processes) == ("8", 1_234_567, 3)
    assert environment(deployment)["TORCHSPLIT_MPS"] == "1"
    single = plan_of(planned_gpu("gpu0", "A100-80GB", [("2g.20gb", 0, "8")]))
    assert "TORCHSPLIT_MPS" not in environment(*deployments(single))


def test_pods_are_probed_drained_and_scraped(mixed_plan):
    for deployment in deployments(mixed_plan):
        template = deployment["spec"]["template"]
        (container,) = template["spec"]["containers"]
        (port,) = container["ports"]
        for probe, path in (
            ("startupProbe", "ready"), ("readinessProbe", "ready"), ("livenessProbe", "live"),
        ):  # fmt: skip
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


def test_cores_are_asked_for_whole_and_with_their_memory():
    known = tuple(("2c", start, tenant("a", memory_gib=1.2)) for start in (0, 2))
    unknown = (("1c", 0, tenant("a", memory_gib=None)),)
    plan = plan_of(planned_gpu("n0/cpu0", "CPU-4c", known), planned_gpu("n1/cpu0", "CPU-1c", unknown))
    held = [one["spec"]["template"]["spec"]["containers"][0]["resources"] for one in deployments(plan)]
    assert {"requests": {"cpu": 2, "memory": "3Gi"}, "limits": {"cpu": 2, "memory": "3Gi"}} in held
    assert {"requests": {"cpu": 1}, "limits": {"cpu": 1}} in held


def test_stages_variants_and_batches_are_deployments_of_their_own():
    kinds = [
        {"stage": "s1"}, {"stage": "s2"}, {"model": "ocr"}, {"stage": "s1", "batch_size": 16},
        {"stage": "s1", "processes": 2}, {"stage": "s1"}, {"stage": "s2", "throughput_rps": 60.0},
    ]  # fmt: skip
    slices = tuple(("1g.10gb", i, tenant(**{"model": "bert", **kind})) for i, kind in enumerate(kinds))
    found = deployments(plan_of(planned_gpu("gpu0", "A100-80GB", slices)))
    assert len({document["metadata"]["name"] for document in found}) == len(found) == 5
    assert sorted(document["spec"]["replicas"] for document in found) == [1, 1, 1, 2, 2]


def test_tenants_that_share_a_slice_are_one_pod():
    one, two = tenant("a", share=0.25, throughput_rps=30.0), tenant("b", share=0.75)
    slices = (("3g.40gb", 0, (one, two)), ("3g.40gb", 4, (two, one)))
    plan = plan_of(planned_gpu("gpu0", "A100-80GB", slices))
    (deployment,) = deployments(plan)
    assert deployment["spec"]["replicas"] == 2
    assert [(one.model, one.share) for one in tenants(plan, deployment)] == [("a", 0.25), ("b", 0.75)]
    services = [manifest for manifest in manifests(plan) if manifest["kind"] == "Service"]
    assert len(services) == 2
    assert all(selects(service, deployment) for service in services)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_validator_notices_a_wrong_manifest(version, mixed_plan):
    document = deployments(mixed_plan)[0]
    document["spec"]["replicas"] = "two"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, version, strict=True)
