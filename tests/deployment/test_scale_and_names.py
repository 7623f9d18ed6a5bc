"""Every workload of a thousand GPUs, of one slice, and of models whose names are made to cause harm."""

import subprocess

import pytest
import yaml

from tests.support.deployment.asked import asked
from tests.support.deployment.helpers import plan_of, planned_gpu
from torchsplit_core.deployment import WORKLOAD_FORMATS, DeploymentFile
from torchsplit_core.deployment.image import SERVING, requirements
from torchsplit_core.files import read_text

EVIL = "x\"; touch PWNED $(touch PWNED)`touch PWNED` ${PWNED:?} {{ x }} ' #: - & * !!python/object %n \\"


@pytest.mark.repeated
@pytest.mark.slow
def test_a_thousand_gpus_are_few_kinds_of_servers():
    slices = [("1g.10gb", start, f"m{start}") for start in range(7)]
    gpus = (planned_gpu(f"node{i // 8}/gpu{i % 8}", "A100-80GB", slices) for i in range(1024))
    found = asked(plan_of(*gpus))
    texts = found.texts(*WORKLOAD_FORMATS)
    assert sum(name.startswith("image/servers/") for name in texts) == 2 * 7
    deployments = list(yaml.safe_load_all(texts["kubernetes/deployments.yaml"]))
    assert [deployment["spec"]["replicas"] for deployment in deployments] == [1024] * 7
    assert sum(name.endswith("compose.yaml") for name in texts) == 128
    _, routes = read_text(texts["compose/node5/routes.json"], expected="torchsplit.routes")
    assert [len(model.steps[0].servers) for model in routes.models] == [8] * 7
    assert len(texts["README.md"]) < 3_000_000


@pytest.mark.parametrize("name", WORKLOAD_FORMATS)
def test_one_slice(name):
    texts = asked(plan_of(planned_gpu("gpu0", "A100-80GB", [("1g.10gb", 6, "a")]))).texts(name)
    assert len([text for text in texts if text.startswith("image/servers/")]) == 2


@pytest.mark.parametrize("name", WORKLOAD_FORMATS)
def test_names_run_nothing_and_change_no_structure(name):
    evil = asked(plan_of(planned_gpu("gpu0", "A100-80GB", [("7g.80gb", 0, EVIL)]))).files(name)
    plain = asked(plan_of(planned_gpu("gpu0", "A100-80GB", [("7g.80gb", 0, "x")]))).files(name)
    assert len(evil) == len(plain)
    for file in evil.values():
        if file.executable or file.name.endswith((".env", ".service", ".target", ".conf", "Dockerfile")):
            assert "PWNED" not in file.text, file.name
        if file.name.endswith((".sh", ".sbatch")):
            assert subprocess.run(["bash", "-n"], input=file.text, text=True).returncode == 0
        if file.name.endswith(".yaml"):
            kinds = [type(one) for one in yaml.safe_load_all(file.text)]
            assert kinds == [type(one) for one in yaml.safe_load_all(plain_text(plain, file.name))]
        if file.name.endswith("compose.yaml"):
            # Compose would fill variables in.
            assert "PWNED" not in file.text


def plain_text(files: dict[str, DeploymentFile], name: str) -> str:
    return files[name].text


def test_the_image_pins_what_it_needs():
    lines = requirements().splitlines()
    assert [line.partition("==")[0] for line in lines] == list(SERVING)
    assert all(line.partition("==")[2] and "+" not in line for line in lines)
