"""mig-parted.yaml against a strict copy of mig-parted's own schema, and against what a GPU can hold."""

from __future__ import annotations

from collections import Counter

import pytest
import yaml
from pydantic import ValidationError

from tests.support.deployment.helpers import MIXED, plan_of, planned_gpu
from tests.support.deployment.mig_parted import MigConfigSpec, Spec
from torchsplit_core.deployment import deploy
from torchsplit_core.hardware import catalogue, place_layout
from torchsplit_core.values import InputFault, PlanOutcome


def config_of(plan: PlanOutcome) -> tuple[str, dict[str, list[MigConfigSpec]]]:
    (text,) = (file.text for file in deploy(plan, ["mig-parted"]) if file.name == "mig-parted.yaml")
    return text, Spec.model_validate(yaml.safe_load(text)).mig_configs


def test_equal_gpus_of_a_host_are_one_entry_and_unused_ones_none(mixed_plan):
    text, configs = config_of(mixed_plan)
    first, second = configs["torchsplit-1"], configs["torchsplit-2"]
    assert [(entry.devices, entry.mig_devices) for entry in first] == [
        ([0, 2], {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1})
    ]
    assert [(entry.devices, entry.mig_devices) for entry in second] == [([0], {"7g.80gb": 1})]
    assert '# torchsplit-2: "node1"' in text


def test_every_config_can_exist_on_the_gpus_it_names(mixed_plan):
    _, configs = config_of(mixed_plan)
    labels = {"node0": "torchsplit-1", "node1": "torchsplit-2"}
    planned = {gpu.id: gpu for gpu in mixed_plan.gpus if gpu.slices}
    seen = {}
    for node, label in labels.items():
        for entry in configs[label]:
            names = list(Counter(entry.mig_devices).elements())
            for index in entry.devices:
                gpu = planned[f"{node}/gpu{index}"]
                assert place_layout(catalogue()[gpu.type], names) is not None
                seen[gpu.id] = sorted(names)
    assert seen == {gpu.id: sorted(item.profile for item in gpu.slices) for gpu in planned.values()}


def test_hosts_cut_alike_share_a_label_unless_their_types_differ():
    slices = [("1g.10gb", 0, "a")]
    alike = plan_of(*(planned_gpu(f"node{i}/gpu0", "A100-80GB", slices) for i in range(3)))
    assert set(config_of(alike)[1]) == {"torchsplit"}
    mixed = plan_of(
        planned_gpu("node0/gpu0", "A100-80GB", slices), planned_gpu("node1/gpu0", "H100-SXM5-80GB", slices)
    )
    assert set(config_of(mixed)[1]) == {"torchsplit-1", "torchsplit-2"}


@pytest.mark.parametrize(("ids", "indices"), [
    (["gpu4", "gpu5"], [4, 5]),
    (["host/1", "host/0"], [0, 1]),
    (["left", "right"], [0, 1]),
    (["gpu1", "gpu01"], [0, 1]),
    (["A100-80GB-7", "A100-80GB-9"], [0, 1]),
    (["rack/host/GPU-3", "rack/host/GPU-2"], [2, 3]),
])  # fmt: skip
def test_ids_give_the_device_indices(ids, indices):
    plan = plan_of(*(planned_gpu(i, "A100-80GB", [("7g.80gb", 0, "m")]) for i in ids))
    (entry,) = config_of(plan)[1]["torchsplit"]
    assert entry.devices == indices


@pytest.mark.parametrize("broken", [
    {"version": "v2", "mig-configs": {"a": [{"devices": "all", "mig-enabled": False}]}},
    {"version": "v1", "mig-configs": {}},
    {"version": "v1", "mig-configs": {"a": [{"devices": [0], "mig-enabled": True}]}},
    {"version": "v1", "mig-configs": {"a": [{"devices": [0], "mig-enabled": False, "start": 0}]}},
    {"version": "v1", "mig-configs": {"a": [{"devices": "0", "mig-enabled": False}]}},
])  # fmt: skip
def test_the_validator_rejects_what_mig_parted_rejects(broken):
    with pytest.raises(ValidationError):
        Spec.model_validate(broken)


@pytest.mark.parametrize(("slices", "why"), [
    ([("1g.10gb", i % 7, None) for i in range(40)], "overlaps"),
    ([("3g.40gb", 0, None), ("3g.40gb", 4, None), ("1g.10gb", 6, None)], "overlaps"),
    ([("3g.40gb", 2, None)], "cannot start"),
    ([("9g.90gb", 0, None)], "no profile"),
])  # fmt: skip
def test_a_layout_that_cannot_exist_is_refused(slices, why):
    with pytest.raises(InputFault, match=why):
        deploy(plan_of(planned_gpu("gpu0", "A100-80GB", slices)), ["mig-parted"])


def test_names_cannot_leave_the_comments():
    plan = plan_of(planned_gpu("a\nversion: v2\n#/gpu0", "A100-80GB", MIXED))
    assert set(config_of(plan)[1]) == {"torchsplit"}
