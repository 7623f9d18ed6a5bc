"""GPUs left whole, GPUs without MIG and cores in the files of a plan."""

import pytest
import yaml

from tests.support.deployment.asked import asked
from tests.support.deployment.helpers import plan_of, planned_gpu
from torchsplit_core.deployment import deploy
from torchsplit_core.values import WHOLE_GPU, InputFault, PlanOutcome

MIG = planned_gpu("n/gpu0", "A100-80GB", [("3g.40gb", 0, "bert")])
WHOLE = planned_gpu("n/gpu1", "A100-80GB", [(WHOLE_GPU, 0, "bert")])
L4 = planned_gpu("n/gpu2", "L4-24GB", [(WHOLE_GPU, 0, "ocr")])
CORES = planned_gpu("n/cpu", "CPU-16c", [("4c", 0, "ocr"), ("8c", 4, "bert")])
PLAN = plan_of(MIG, WHOLE, L4, CORES)


def text(plan: PlanOutcome, form: str, name: str) -> str:
    return next(file.text for file in deploy(plan, [form]) if file.name == name)


def test_mig_parted_and_nvidia_smi_turn_mig_off_and_leave_cores_alone():
    (entries,) = yaml.safe_load(text(PLAN, "mig-parted", "mig-parted.yaml"))["mig-configs"].values()
    assert entries == [
        {"devices": [0], "mig-enabled": True, "mig-devices": {"3g.40gb": 1}},
        {"devices": [1, 2], "mig-enabled": False},
    ]
    script = text(PLAN, "nvidia-smi", "apply-mig-n.sh")
    assert "leave_whole 1\n" in script and "leave_whole 2\n" in script and "-mig 0" in script
    assert "cut_gpu 0 3g.40gb:0\n" in script and "CPU-16c" not in script
    assert "leave_whole" not in text(plan_of(MIG), "nvidia-smi", "apply-mig-n.sh")


def test_kubernetes_asks_for_a_gpu_or_for_cores():
    documents = list(yaml.safe_load_all(asked(PLAN).texts("kubernetes")["kubernetes/deployments.yaml"]))
    found = [item["spec"]["template"]["spec"]["containers"][0]["resources"] for item in documents]
    assert sorted(found, key=str) == [
        {"limits": {"nvidia.com/gpu": 1}},
        {"limits": {"nvidia.com/gpu": 1}},
        {"limits": {"nvidia.com/mig-3g.40gb": 1}},
        {"requests": {"cpu": 4, "memory": "5Gi"}, "limits": {"cpu": 4, "memory": "5Gi"}},
        {"requests": {"cpu": 8, "memory": "5Gi"}, "limits": {"cpu": 8, "memory": "5Gi"}},
    ]


@pytest.mark.parametrize("form", ["mig-parted", "nvidia-smi"])
def test_a_plan_of_cores_alone_has_nothing_to_cut(form):
    with pytest.raises(InputFault, match="only cores"):
        deploy(plan_of(CORES), [form])


def test_a_slice_of_mig_on_a_whole_gpu_cannot_be():
    with pytest.raises(InputFault, match="together"):
        deploy(
            plan_of(planned_gpu("gpu0", "A100-80GB", [(WHOLE_GPU, 0, "a"), ("1g.10gb", 0, "b")])),
            ["mig-parted"],
        )
