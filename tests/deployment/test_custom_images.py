"""Models that run in images of the user's own, beside those that TorchSplit serves and without any."""

import json
import re
import subprocess
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
import yaml

from tests.support.deployment.asked import Asked, asked
from tests.support.deployment.helpers import plan_of, planned_gpu, tenant
from torchsplit_core.deployment import WORKLOAD_FORMATS, custom_images, deploy, models_to_write, omitted_by
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import InputFault, PlanOutcome

COMPOSE = json.loads(
    files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text()
)
EVERYWHERE = ("kubernetes", "compose", "systemd", "slurm")
COMMAND = "serve --name '$(HOME) ${X} %i' it\\'s"
WORDS = ["serve", "--name", "$(HOME) ${X} %i", "it's"]


def without_sources(plan: PlanOutcome, *names: str) -> Asked:
    """The plan with its request, in which these models (all where none is named) have no source."""
    deployment = asked(plan)
    models = tuple(
        replace(model, source=None) if not names or model.name in names else model
        for model in deployment.request.models
    )
    request = replace(deployment.request, models=models)
    return Asked(replace(plan, request_sha256=request_hash(request)), request, deployment.manifests)


def texts(found: Asked, *formats: str, **own: dict[str, str]) -> dict[str, str]:
    made = deploy(found.plan, formats, found.request, found.manifests, custom_images(found.request, **own))
    return {file.name: file.text for file in made}


def shared() -> PlanOutcome:
    """A slice that a and b share, one that a has alone, and two cores of c."""
    one, two = tenant("a", share=0.25, throughput_rps=30.0), tenant("b", share=0.75, throughput_rps=90.0)
    return plan_of(
        planned_gpu("gpu0", "A100-80GB", [("3g.40gb", 0, (one, two)), ("3g.40gb", 4, tenant("a"))]),
        planned_gpu("cpu0", "CPU-4c", [("2c", 2, tenant("c", memory_gib=0.5))]),
    )


def services(text: str) -> dict[str, Any]:
    document = yaml.safe_load(text)
    jsonschema.Draft202012Validator(COMPOSE).validate(document)
    return document["services"]


def test_models_without_a_source_or_an_image_are_placeholders_that_say_so():
    found = without_sources(plan_of(planned_gpu("gpu0", "A100-80GB", [("1g.10gb", 0, "clip")])))
    assert models_to_write(found.plan, EVERYWHERE, found.request) == ()
    written = texts(found, *EVERYWHERE)
    assert not any(name.startswith("image/") or name.endswith("routes.json") for name in written)
    for name in ("compose/compose.yaml", "kubernetes/kustomization.yaml", "slurm/serve.sbatch",
                 "systemd/containers/gpu0-1g-10gb-at0-clip.sh"):  # fmt: skip
        assert "registry.invalid/clip" in written[name]
        assert 'PLACEHOLDER: no image is known for "clip"' in written[name]
    assert "torchsplit/placeholder-image" in written["kubernetes/deployments.yaml"]
    assert "**PLACEHOLDER: set it**" in written["README.md"]
    for name in ("ray-serve", "triton"):
        with pytest.raises(InputFault, match=r"an image of its own.*\(clip\)"):
            texts(found, name)


def test_an_image_and_its_command_stand_in_place_of_the_source():
    found = asked(plan_of(planned_gpu("gpu0", "A100-80GB", [("1g.10gb", 0, "a"), ("1g.10gb", 1, "b")])))
    own = custom_images(found.request, {"a": "ghcr.io/me/a:1"}, {"a": COMMAND})
    assert list(own) == ["a"] and own["a"].command == tuple(WORDS) and not own["a"].placeholder
    assert [model.name for model, _ in models_to_write(found.plan, WORKLOAD_FORMATS, found.request, own)] == [
        "b"
    ]
    written = texts(found, *WORKLOAD_FORMATS, images={"a": "ghcr.io/me/a:1"}, commands={"a": COMMAND})
    made = services(written["compose/compose.yaml"])
    assert set(made) == {"router", "gpu0-1g-10gb-at1", "gpu0-1g-10gb-at0-a"}
    one = made["gpu0-1g-10gb-at0-a"]
    assert one["image"] == "ghcr.io/me/a:1" and one["command"] == [word.replace("$", "$$") for word in WORDS]
    assert one["environment"]["TORCHSPLIT_BATCH_SIZE"] == "8" and one["ports"] == ["8002:8000"]
    (device,) = one["deploy"]["resources"]["reservations"]["devices"]
    assert "SLICE_GPU0_1G_10GB_AT0_A" in device["device_ids"][0]
    assert "slice gpu0-1g-10gb-at0-a " in written["compose/find-slices.sh"]
    deployments = [*yaml.safe_load_all(written["kubernetes/deployments.yaml"])]
    (pod,) = [
        each["spec"]["template"]["spec"]["containers"][0]
        for each in deployments
        if each["metadata"]["labels"]["app.kubernetes.io/component"] == "own-image"
    ]
    assert pod["args"] == [word.replace("$(", "$$(") for word in WORDS] and pod["image"] == "ghcr.io/me/a:1"
    assert pod["resources"] == {"limits": {"nvidia.com/mig-1g.10gb": 1}}
    assert "PLACEHOLDER" not in "".join(written.values())
    assert "- triton: what runs in an image of its own" in written["README.md"]
    routed = json.loads(written["compose/routes.json"])["models"]
    assert [model["name"] for model in routed] == ["b"]


@pytest.mark.parametrize("name", ["systemd/containers/gpu0-1g-10gb-at0-a.sh", "slurm/serve.sbatch"])
def test_a_shell_hands_the_command_over_as_it_was_given(name, tmp_path):
    deployment = asked(plan_of(planned_gpu("gpu0", "A100-80GB", [("1g.10gb", 0, "a")])))
    written = texts(deployment, name.partition("/")[0], images={"a": "me/a"}, commands={"a": COMMAND})
    for program in ("docker", "srun"):
        (tmp_path / program).write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
        (tmp_path / program).chmod(0o755)
    (tmp_path / "script").write_text(written[name])
    done = subprocess.run(
        ["bash", "script"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "MIG-1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-len(WORDS) :] == WORDS
    assert "TORCHSPLIT_MODEL=a" in done.stdout


def test_tenants_that_share_a_slice_are_containers_on_one_slice_where_the_format_has_that():
    found = without_sources(shared())
    written = texts(found, *EVERYWHERE)
    made = services(written["compose/compose.yaml"])
    assert len(made) == 4
    assert [one["environment"]["TORCHSPLIT_SHARE"] for one in made.values()] == ["0.25", "0.75", "1", "1"]
    script = written["compose/find-slices.sh"]
    numbers = [line.split()[-1] for line in script.splitlines() if line.startswith("slice gpu0")]
    assert numbers == ["0/3g.40gb/0", "0/3g.40gb/0", "0/3g.40gb/1"]
    assert [one["cpuset"] for one in made.values() if "cpuset" in one] == ["2-3"]
    said, everything = omitted_by(found.plan, "kubernetes", custom_images(found.request))
    assert "a on gpu0 3g.40gb" in said and "b on gpu0" in said and not everything
    assert f"- kubernetes: {said}".replace("_", r"\_")[:60] in written["README.md"].replace("\\", "")
    assert "TORCHSPLIT_MODEL=b" not in written["slurm/serve.sbatch"]
    assert re.findall(r"(?m)^#SBATCH --ntasks=(\d+)", written["slurm/serve.sbatch"]) == ["2"]
    labels = [one["metadata"]["name"] for one in yaml.safe_load_all(written["kubernetes/deployments.yaml"])]
    assert len(labels) == 2 and not any("-b-" in label for label in labels)


def test_a_tenant_of_ones_own_beside_one_that_is_served():
    deployment = asked(shared())
    made = services(texts(deployment, "compose", images={"b": "me/b"})["compose/compose.yaml"])
    assert set(made) == {"router", "gpu0-3g-40gb-at0", "gpu0-3g-40gb-at4", "cpu-2c-at2", "gpu0-3g-40gb-at0-b"}


@pytest.mark.parametrize(("images", "commands", "words"), [
    ({"clap": "x"}, {}, r"image: unknown model 'clap'. Did you mean clip\?"),
    ({}, {"x": "y"}, "command: unknown model 'x'"),
    ({"clip": "a b"}, {}, "image of clip: is 'a b', not the name of an image"),
    ({"clip": "--privileged"}, {}, "image of clip"),
    ({}, {"clip": "serve 'x"}, 'command of clip: is "serve \'x": no closing quotation'),
])  # fmt: skip
def test_what_is_no_image_or_command_is_said(images, commands, words):
    deployment = asked(plan_of(planned_gpu("gpu0", "A100-80GB", [("1g.10gb", 0, "clip")])))
    with pytest.raises(InputFault, match=words):
        custom_images(deployment.request, images, commands)
