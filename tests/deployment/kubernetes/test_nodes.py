"""Nodes are cut and labelled by a configuration and a script, which takes nothing but the name of a node."""

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.support.deployment.helpers import MIXED, FakeHost, plan_of, planned_gpu
from tests.support.deployment.kubernetes import manifests, texts
from tests.support.deployment.mig_parted import Spec
from torchsplit_core.deployment import deploy
from torchsplit_core.deployment.formats.mig_parted import standard_configs
from torchsplit_core.hardware import catalogue, place_layout
from torchsplit_core.values import InputFault


def test_the_config_map_holds_the_mig_parted_configuration(mixed_plan):
    (config_map,) = (
        document
        for document in manifests(mixed_plan)
        if document["kind"] == "ConfigMap" and "config.yaml" in document["data"]
    )
    inner = Spec.model_validate(yaml.safe_load(config_map["data"]["config.yaml"])).mig_configs
    outer = yaml.safe_load(
        next(file.text for file in deploy(mixed_plan, ["mig-parted"]) if file.name == "mig-parted.yaml")
    )
    planned = Spec.model_validate(outer).mig_configs
    assert {label: inner[label] for label in planned} == planned
    assert list(inner)[: len(planned)] == list(planned)


def test_the_config_map_has_what_the_operator_generates_for_other_nodes():
    configs = Spec.model_validate({"version": "v1", "mig-configs": standard_configs()}).mig_configs
    ((disabled,), (enabled,)) = configs.pop("all-disabled"), configs.pop("all-enabled")
    assert not disabled.mig_enabled and enabled.mig_enabled and enabled.mig_devices == {}
    types = {pci: kind for kind in catalogue().values() for pci in kind.pci_device_ids}
    labels = {pci: set() for pci in types}
    for label, entries in configs.items():
        pci_ids = [pci for entry in entries for pci in entry.device_filter]
        assert len(pci_ids) == len(set(pci_ids))
        for entry in entries:
            for pci in entry.device_filter:
                labels[pci].add(label)
                if all(types[pci].profile(name).placement_starts for name in entry.mig_devices):
                    assert place_layout(types[pci], list(Counter(entry.mig_devices).elements())) is not None
    for pci, kind in types.items():
        profiles = {f"all-{profile.name.replace('+', '.')}" for profile in kind.profiles}
        assert labels[pci] - {"all-balanced"} == profiles
    (balanced,) = (entry for entry in configs["all-balanced"] if "0x20B210DE" in entry.device_filter)
    assert balanced.mig_devices == {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}
    assert all(re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", label) for label in configs)


def kubectl(host: FakeHost) -> Path:
    """A kubectl that writes its arguments down."""
    log = host.directory / "kubectl.log"
    program = host.directory / "kubectl"
    program.write_text(
        f"#!/bin/bash\nprintf '%q ' \"$@\" >> {shlex.quote(str(log))}\necho >> {shlex.quote(str(log))}\n"
    )
    program.chmod(0o755)
    return log


def test_nodes_are_labelled_only_when_told_to(mixed_plan, fake_host):
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


def test_a_plan_without_host_names_asks_for_the_node(fake_host):
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
def test_what_is_no_node_is_refused_by_the_files_and_by_their_script(name, fake_host):
    with pytest.raises(InputFault, match="RFC 1123"):
        texts(plan_of(planned_gpu(f"{name}/gpu0", "A100-80GB", MIXED)))
    log = kubectl(fake_host)
    text = texts(plan_of(planned_gpu("gpu0", "A100-80GB", MIXED)))["kubernetes/label-nodes.sh"]
    refused = fake_host.run(text, "--apply", TORCHSPLIT_NODE=name)
    assert refused.returncode == 1
    assert "RFC 1123" in refused.stderr
    assert not log.exists()
    assert not (fake_host.directory / "owned").exists()


def test_even_without_the_check_a_node_is_no_option_of_kubectl(fake_host):
    log = kubectl(fake_host)
    text = texts(plan_of(planned_gpu("gpu0", "A100-80GB", MIXED)))["kubernetes/label-nodes.sh"]
    open_to_all = re.sub(r"(?m)^node_name=.*$", "node_name='.*'", text)
    assert open_to_all != text
    assert fake_host.run(open_to_all, "--apply", TORCHSPLIT_NODE="--all").returncode == 0
    called = shlex.split(log.read_text())
    assert called.index("--") < called.index("--all")


def test_the_other_formats_take_hosts_that_are_no_nodes():
    plan = plan_of(planned_gpu("Rack 1/gpu0", "A100-80GB", MIXED))
    assert {file.name for file in deploy(plan, ["mig-parted", "nvidia-smi"])} >= {"mig-parted.yaml"}
