"""The manifests against the published schemas of Kubernetes, and against the plan."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.support.deployment.helpers import MIXED, FakeHost, plan_of, planned_gpu, tenant
from torchsplit_core.deployment import deploy
from torchsplit_core.deployment.names import cluster_names
from torchsplit_core.values import InputFault, PlannedGpu, PlannedSlice, PlanOutcome

RFC_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def texts(plan: PlanOutcome) -> dict[str, str]:
    return {file.name: file.text for file in deploy(plan, ["kubernetes"])}


def manifests(plan: PlanOutcome) -> list[dict[str, Any]]:
    """Every manifest, each one checked."""
    found = [
        document
        for name, text in texts(plan).items()
        if name.endswith(".yaml")
        for document in yaml.safe_load_all(text)
    ]
    for document in found:
        kubernetes_validate.validate(document, "1.32", strict=True)
        assert RFC_1123.fullmatch(document["metadata"]["name"])
    return found


def deployments(plan: PlanOutcome) -> list[dict[str, Any]]:
    return [document for document in manifests(plan) if document["kind"] == "Deployment"]


def environment(deployment: dict[str, Any]) -> dict[str, str]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {row["name"]: row["value"] for row in container["env"]}


def test_the_pods_take_exactly_the_slices_that_have_tenants(mixed_plan: PlanOutcome) -> None:
    asked: Counter[tuple[str, str]] = Counter()
    for deployment in deployments(mixed_plan):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        ((resource, count),) = container["resources"]["limits"].items()
        assert count == 1
        assert container["image"] == "TORCHSPLIT_IMAGE"
        asked[environment(deployment)["TORCHSPLIT_MODEL"], resource] += deployment["spec"]["replicas"]
    assert asked == {
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


def test_the_environment_says_what_to_serve() -> None:
    item = PlannedSlice("2g.20gb", 0, (tenant("8", batch_size=1_234_567, processes=3),))
    plan = plan_of(PlannedGpu("gpu0", "A100-80GB", True, (item,)))
    (deployment,) = deployments(plan)
    assert environment(deployment) == {
        "TORCHSPLIT_MODEL": "8",
        "TORCHSPLIT_VARIANT": "whole",
        "TORCHSPLIT_STAGE": "whole",
        "TORCHSPLIT_BATCH_SIZE": "1234567",
        "TORCHSPLIT_PROCESSES": "3",
        "TORCHSPLIT_SHARE": "1.0",
    }


def test_stages_variants_and_batches_are_deployments_of_their_own() -> None:
    kinds = [
        {"stage": "s1"},
        {"stage": "s2"},
        {"variant": "cut"},
        {"batch_size": 16},
        {"processes": 2},
        {},
        {},
    ]
    slices = tuple(PlannedSlice("1g.10gb", i, (tenant("bert", **kind),)) for i, kind in enumerate(kinds))
    found = deployments(plan_of(PlannedGpu("gpu0", "A100-80GB", True, slices)))
    assert len({document["metadata"]["name"] for document in found}) == len(found) == 6
    assert sorted(document["spec"]["replicas"] for document in found) == [1, 1, 1, 1, 1, 2]


def test_tenants_that_share_a_slice_are_one_pod() -> None:
    one, two = tenant("a", share=0.25, throughput_rps=30.0), tenant("b", share=0.75)
    slices = (PlannedSlice("3g.40gb", 0, (one, two)), PlannedSlice("3g.40gb", 4, (two, one)))
    (deployment,) = deployments(plan_of(PlannedGpu("gpu0", "A100-80GB", True, slices)))
    assert deployment["spec"]["replicas"] == 2
    rows = json.loads(environment(deployment)["TORCHSPLIT_TENANTS"])
    assert [(row["model"], row["share"]) for row in rows] == [("a", 0.25), ("b", 0.75)]


def test_the_config_map_holds_the_mig_parted_configuration(mixed_plan: PlanOutcome) -> None:
    (config_map,) = (document for document in manifests(mixed_plan) if document["kind"] == "ConfigMap")
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
        deploy(plan_of(planned_gpu(f"{name}/gpu0", "A100-80GB", MIXED)), ["kubernetes"])
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


HOSTILE = ["Bert", "bert", "bert!", "", "{{ x }}", "a: b\n---\nkind: Pod", "é" * 300, "ümlaut", "- x", "null"]


def test_hostile_and_colliding_names_stay_apart() -> None:
    slices = [planned_gpu(f"gpu{i}", "A100-80GB", [("7g.80gb", 0, name)]) for i, name in enumerate(HOSTILE)]
    found = deployments(plan_of(*slices))
    assert [environment(document)["TORCHSPLIT_MODEL"] for document in found] == HOSTILE
    assert len({document["metadata"]["name"] for document in found}) == len(HOSTILE)


@given(st.lists(st.tuples(st.text(max_size=80), st.text(max_size=80)), max_size=8))
def test_cluster_names_are_labels_unique_and_independent_of_order(keys: list[tuple[str, str]]) -> None:
    names = cluster_names({key: key for key in keys})
    assert all(RFC_1123.fullmatch(name) and len(name) <= 46 for name in names.values())
    assert len(set(names.values())) == len(names)
    assert cluster_names({key: key for key in reversed(keys)}) == names


@pytest.mark.parametrize("version", ["1.28", "1.32"])
def test_the_validator_notices_a_wrong_manifest(version: str, mixed_plan: PlanOutcome) -> None:
    document = deployments(mixed_plan)[0]
    document["spec"]["replicas"] = "two"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, version, strict=True)
