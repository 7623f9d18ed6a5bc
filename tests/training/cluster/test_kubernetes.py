"""A run for Kubernetes: against the published schemas, and what its pods are told."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from tests.support.training.fleets import check, job, manifests, request, texts
from torchsplit_core.files import read_text
from torchsplit_core.training.cluster import FleetJob, PodSpec
from torchsplit_core.values import InputFault


def spec_of(found: FleetJob, format_name: str, pods: PodSpec | None = None) -> dict[str, Any]:
    """The Job's specification."""
    made = manifests(found, format_name, pods)
    if format_name == "job":
        return dict(made["Job"]["spec"])
    (replicated,) = made["JobSet"]["spec"]["replicatedJobs"]
    return dict(replicated["template"]["spec"])


def container(spec: dict[str, Any]) -> dict[str, Any]:
    (found,) = spec["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.slow
@pytest.mark.parametrize("format_name", ["jobset", "job"])
def test_there_is_a_pod_for_each_node_with_its_gpus(format_name: str) -> None:
    spec = spec_of(job(), format_name)
    assert (spec["completions"], spec["parallelism"], spec["maxFailedIndexes"]) == (2, 2, 0)
    assert container(spec)["resources"] == {"requests": {"cpu": 16}, "limits": {"nvidia.com/gpu": 4}}
    assert "successPolicy" not in spec
    cores = job(given=request(3, 2, "CPU-3c"), nodes=(1, 3))
    fewer = spec_of(cores, format_name)
    assert (fewer["completions"], fewer["maxFailedIndexes"]) == (3, 2)
    assert fewer["successPolicy"] == {"rules": [{"succeededCount": 1}]}
    assert container(fewer)["resources"]["limits"] == {"cpu": 6}
    config = manifests(cores, format_name)["ConfigMap"]
    assert read_text(config["data"]["strategy.json"])[1] == request(3, 2, "CPU-3c")


@pytest.mark.parametrize(("format_name", "first"), [("jobset", "llama-run-node-0-0"), ("job", "llama-run-0")])
def test_the_pods_meet_at_the_first_by_the_name_that_it_keeps(format_name: str, first: str) -> None:
    made, spec = manifests(job(), format_name), spec_of(job(), format_name)
    told = {row["name"]: row["value"] for row in container(spec)["env"]}
    assert told["TORCHSPLIT_MEETING"] == f"{first}.llama-run"
    assert spec["template"]["spec"]["subdomain"] == "llama-run"
    if format_name == "job":
        service = made["Service"]
        assert service["metadata"]["name"] == "llama-run" and service["spec"]["clusterIP"] == "None"
        labels = spec["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
    else:
        assert made["JobSet"]["spec"]["network"]["subdomain"] == "llama-run"


def test_the_command_waits_for_the_first_pods_name_and_then_trains(tmp_path: Path) -> None:
    found = container(spec_of(job(), "jobset"))
    known = f"{tmp_path}/known"
    commands = {
        "getent": f"echo asked >> {tmp_path}/log; [[ -e {known} ]] || {{ touch {known}; exit 2; }}",
        "sleep": "exit 0",
        "torchsplit": f'echo "$@" >> {tmp_path}/log',
    }
    for name, text in commands.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin", "JOB_COMPLETION_INDEX": "1",
        **{row["name"]: row["value"] for row in found["env"]},
    }  # fmt: skip
    subprocess.run([*found["command"], *found["args"]], env=environment, check=True, timeout=60)
    assert (tmp_path / "log").read_text().splitlines() == [
        "asked",
        "asked",
        "train sample:llama --strategy /job/strategy.json -o /runs/llama-run --resume --nnodes 2:2 --processes 4 "
        "--rendezvous llama-run-node-0-0.llama-run:29500 --node node-1",
    ]


def test_a_pod_that_goes_asks_for_a_checkpoint_first(tmp_path: Path) -> None:
    found = container(spec_of(job(), "jobset"))["lifecycle"]["preStop"]["exec"]["command"]
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "watch").mkdir()
    (tmp_path / "sleep").write_text(f"#!/bin/bash\necho step-3 > {tmp_path}/checkpoints/LATEST\n")
    (tmp_path / "sleep").chmod(0o755)
    assert found[-1] == "/runs/llama-run"
    command = [*found[:-1], str(tmp_path)]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60)
    assert done.returncode == 0 and not done.stderr
    assert (tmp_path / "watch" / "checkpoint").exists()


def test_a_source_of_ones_own_goes_with_the_job_whatever_its_path_is(tmp_path: Path) -> None:
    path = tmp_path / "my $(HOME); client.py"
    path.write_text("client = None\n")
    made = job(f"{path}:client", trust=True)
    found = container(spec_of(made, "jobset"))
    assert found["args"][1] == "/job/client.py:client" and "--trust" in found["args"]
    assert manifests(made, "jobset")["ConfigMap"]["data"]["client.py"] == "client = None\n"
    named = container(spec_of(job(f"{path}:$(HOME)", trust=True), "jobset"))
    assert named["args"][1] == "/job/client.py:$$(HOME)", "Kubernetes would put a variable there"
    path.write_text("#" * 10**6)
    with pytest.raises(InputFault, match="more than the 900,000 that a ConfigMap holds"):
        texts(made, "jobset")
    path.write_bytes(b"\xff")
    with pytest.raises(InputFault, match="cannot be read: it is not UTF-8 text"):
        texts(made, "jobset")


def test_image_and_claim_are_the_users() -> None:
    pods = PodSpec("registry.example:5000/team/torchsplit:1.2", "shared")
    spec = spec_of(job(), "job", pods)
    assert container(spec)["image"] == pods.image
    assert spec["template"]["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "shared"}
    for bad in ({"image": "a b"}, {"image": ""}, {"image": "x:{{y}}"}, {"claim": "A"}, {"claim": "a/b"}):
        with pytest.raises(InputFault, match=r"--image|--claim"):
            PodSpec(**bad)


@pytest.mark.slow
def test_the_checks_notice() -> None:
    made = manifests(job(), "jobset")["JobSet"]
    made["spec"]["failurePolicy"]["restarts"] = 3
    with pytest.raises(jsonschema.ValidationError):
        check(made)
    made = manifests(job(), "jobset")["JobSet"]
    made["spec"]["replicatedJobs"][0]["template"]["spec"]["retries"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        check(made)
