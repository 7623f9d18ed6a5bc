"""The Ray Serve configuration by Ray's own schema and by our own look at its keys, which Ray lets pass."""

import json
import subprocess
from typing import Any

import pytest
import yaml
from ray.serve.schema import (
    DeploymentSchema,
    HTTPOptionsSchema,
    RayActorOptionsSchema,
    ServeApplicationSchema,
    ServeDeploySchema,
)

from tests.support.deployment.asked import asked
from tests.support.deployment.helpers import plan_of, planned_gpu, tenant
from torchsplit_core.values import PlanOutcome


def config(plan: PlanOutcome) -> dict[str, Any]:
    """The configuration, checked by Ray and for keys that Ray does not know."""
    document = yaml.safe_load(asked(plan).texts("ray-serve")["ray-serve/serve.yaml"])
    ServeDeploySchema.model_validate(document)
    check_keys(document)
    return document


def check_keys(found: dict[str, Any]) -> None:
    assert set(found) <= set(ServeDeploySchema.model_fields)
    assert set(found["http_options"]) <= set(HTTPOptionsSchema.model_fields)
    for application in found["applications"]:
        assert set(application) <= set(ServeApplicationSchema.model_fields)
        for deployment in application["deployments"]:
            assert set(deployment) <= set(DeploymentSchema.model_fields)
            assert set(deployment["ray_actor_options"]) <= set(RayActorOptionsSchema.model_fields)


def mixed() -> PlanOutcome:
    shared = (tenant("a", share=0.25, throughput_rps=30.0), tenant("b", share=0.75))
    slices = (
        ("3g.40gb", 0, shared),
        ("2g.20gb", 4, tenant("a", processes=3)),
        ("1g.10gb", 6, tenant("a", batch_size=2)),
    )
    cores = (("2c", 0, tenant("c", processes=2)),)
    return plan_of(
        planned_gpu("n0/gpu0", "A100-80GB", slices),
        planned_gpu("n1/gpu0", "A100-80GB", slices),
        planned_gpu("n1/cpu0", "CPU-2c", cores),
    )


def test_replicas_are_processes_and_all_of_them_fit_on_their_slices():
    (application,) = config(mixed())["applications"]
    scripts = [text for name, text in asked(mixed()).texts("ray-serve").items() if name.endswith("start.sh")]
    asked_for = {}
    for deployment in application["deployments"]:
        options = deployment["ray_actor_options"]
        for resource, part in options.get("resources", {}).items():
            asked_for.setdefault(resource, []).append((deployment["num_replicas"], part))
            # A GPU by as much as the slice; cores by none.
            assert options.get("num_gpus", part) == part
            assert ("num_gpus" in options) == ("2c" not in resource)
    assert len(asked_for) == 4
    for resource, uses in asked_for.items():
        nodes = sum(text.count(f"\nnode {resource} ") for text in scripts)
        each = sum(count / nodes * part for count, part in uses)
        assert nodes >= 1 and 0.999 <= each <= 1


def test_the_application_names_every_deployment_and_its_parts():
    texts = asked(mixed()).texts("ray-serve")
    (application,) = config(mixed())["applications"]
    data = json.loads(texts["image/ray-serve/application.json"])
    deployments = {one["name"] for one in application["deployments"]}
    assert {part["deployment"] for part in data["parts"]} == deployments - {"front"}
    assert {model["name"] for model in data["models"]} == {"a", "b", "c"}
    for model in data["models"]:
        for step in model["steps"]:
            assert set(step["deployments"]) <= deployments
            assert len(step["weights"]) == len(step["deployments"]) and min(step["weights"]) > 0
    a = next(model for model in data["models"] if model["name"] == "a")
    assert a["max_batch"] == 2
    assert application["args"]["plan"] == "ray-serve/application.json"


def test_the_scripts_show_what_they_would_do():
    texts = asked(mixed()).texts("ray-serve")
    for name, text in texts.items():
        if name.endswith(".sh"):
            assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0, name
    script = texts["ray-serve/n1/start.sh"]
    environment = {
        "PATH": "/usr/bin:/bin", "RAY_ADDRESS": "n0:6379",
        **{f"SLICE_N1_GPU0_{one}": f"MIG-{one}" for one in ("3G_40GB_AT0", "2G_20GB_AT4", "1G_10GB_AT6")},
    }  # fmt: skip
    done = subprocess.run(["bash", "-c", script, "start.sh"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and all("ray start" in line and "n0:6379" in line for line in lines)
    assert sum("CUDA_VISIBLE_DEVICES=MIG-" in line and "--num-gpus=1" in line for line in lines) == 3
    assert sum("taskset -c 0-1" in line and "--num-gpus=0" in line for line in lines) == 1


def test_the_checks_notice_unknown_keys():
    configuration = config(mixed())
    configuration["applications"][0]["deployments"][0]["replicas"] = 3
    with pytest.raises(AssertionError):
        check_keys(configuration)
    configuration = config(mixed())
    configuration["applications"][0]["deployments"][0]["num_replicas"] = -1
    with pytest.raises(ValueError, match="num_replicas"):
        ServeDeploySchema.model_validate(configuration)
