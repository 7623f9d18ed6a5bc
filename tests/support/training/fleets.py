"""Runs that clusters start, and the part of JobSet's definition that is used."""

from __future__ import annotations

from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from torchsplit_core.training.cluster import FleetJob, PodSpec, ResourceRequest, fleet_job, fleet_of
from torchsplit_core.training.cluster.job_files import fleet_files
from torchsplit_core.training.fitted_strategy import run_strategy_of
from torchsplit_core.values.strategy.request import SourceSizes, StrategyFix, StrategyNodes, StrategyRequest
from torchsplit_core.values.strategy.run import RunOptions
from torchsplit_core.values.training import TrainingJob as Training

VERSIONS = ("1.34", "1.37")


def _of(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_TEXT, _NUMBER, _TRUTH = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_LABEL = {"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"}
JOBSET = _of(
    {
        "apiVersion": {"const": "jobset.x-k8s.io/v1alpha2"},
        "kind": {"const": "JobSet"},
        "metadata": _of({"name": _LABEL, "labels": {"type": "object", "additionalProperties": _TEXT}}, "name"),
        "spec": _of(
            {
                "network": _of(
                    {"enableDNSHostnames": _TRUTH, "subdomain": _LABEL, "publishNotReadyAddresses": _TRUTH}
                ),
                "failurePolicy": _of(
                    {
                        "maxRestarts": _NUMBER,
                        "rules": {
                            "type": "array",
                            "items": _of(
                                {
                                    "name": {"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
                                    "action": {
                                        "enum": ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"]
                                    },
                                    "onJobFailureReasons": {
                                        "type": "array",
                                        "items": {
                                            "enum": [
                                                "BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes",
                                                "MaxFailedIndexesExceeded", "PodFailurePolicy",
                                            ]
                                        },
                                    },
                                },
                                "name", "action",
                            ),
                        },
                    }
                ),
                "replicatedJobs": {
                    "type": "array",
                    "items": _of(
                        {"name": _LABEL, "replicas": _NUMBER, "template": _of({"spec": {"type": "object"}}, "spec")},
                        "name", "template",
                    ),
                },
            },
            "replicatedJobs",
        ),
    },
    "apiVersion", "kind", "metadata", "spec",
)  # fmt: skip
"""The fields of a JobSet that are used, as its definition and its admission check have them (JobSet 0.12)."""


def request(
    nodes: int = 2, per_node: int = 4, kind: str = "A100-80GB", entries: int = 1, **fix: Any
) -> StrategyRequest:
    """A strategy for that fleet, one process a device."""
    fix = {"data": nodes * per_node, "micro_batch": 1, "shard": "fsdp", **fix}
    return StrategyRequest(
        SourceSizes("sample:llama"),
        (StrategyNodes(nodes, per_node, kind),) * entries,
        Training(64, "bf16"),
        StrategyFix(**fix),
    )


def job(
    source: str = "sample:llama",
    given: Any = None,
    folder: str = "some/llama-run",
    options: RunOptions | None = None,
    candidate: int = 1,
    trust: bool = False,
    **asked: Any,
) -> FleetJob:
    """A run on two nodes of four GPUs, unless said otherwise."""
    given, options = given or request(), options or RunOptions()
    fleet = fleet_of(given, run_strategy_of(given, candidate), options, ResourceRequest(**asked))
    return fleet_job(source, given, fleet, folder, options=options, candidate=candidate, trust=trust)


def texts(found: FleetJob, format_name: str, pods: PodSpec | None = None) -> dict[str, str]:
    """What is written, by name."""
    return {file.name: file.text for file in fleet_files(found, format_name, pods)}


def manifests(found: FleetJob, format_name: str, pods: PodSpec | None = None) -> dict[str, dict[str, Any]]:
    """By kind; each is checked against the schemas of Kubernetes, a JobSet's jobs as Jobs."""
    made = yaml.safe_load_all(texts(found, format_name, pods)[f"{format_name}.yaml"])
    by_kind = {one["kind"]: one for one in made}
    for one in by_kind.values():
        check(one)
    return by_kind


def check(manifest: dict[str, Any]) -> None:
    """Raises for a manifest that a cluster would refuse or whose keys it would drop."""
    whole = [manifest]
    if manifest["kind"] == "JobSet":
        jsonschema.validate(manifest, JOBSET)
        head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
        whole = [{**head, **one["template"]} for one in manifest["spec"]["replicatedJobs"]]
    for one in whole:
        for version in VERSIONS:
            kubernetes_validate.validate(one, version, strict=True)
