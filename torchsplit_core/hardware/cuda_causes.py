"""Why a process cannot use CUDA although NVML or a user says that there is a GPU, by cause.

`cause_of` is a pure function of facts that `cuda_facts` gathers. CUDA itself gives the same message for all causes
("no CUDA-capable device is detected"). Untested on hardware.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torchsplit_core.hardware.nvml import Nvml, NvmlFault
from torchsplit_core.hardware.nvml_driver import open_driver
from torchsplit_core.values import InputFault, quoted

Cause = Literal["cpu_build", "no_driver", "no_gpu", "stale_uuid", "no_capability", "old_driver", "unknown"]

CAPABILITY_NODES, CAPABILITIES = Path("/dev/nvidia-caps"), Path("/proc/driver/nvidia/capabilities")
"""The driver's device nodes of MIG instances, and the files that map instances to nodes (NVIDIA's MIG user guide).

A host with MIG has at least those for configuring and monitoring; a container has those passed to it.
"""
CONTAINER_HINT = (
    "In a container the host's driver has to be let in: start it with --gpus all (NVIDIA Container Toolkit), on "
    "Kubernetes with an nvidia.com/… resource."
)
HOLDERS_HINT = (
    "What usually holds a GPU or instance on which nothing computes: Kubernetes' device plugin "
    "(nvidia-device-plugin), DCGM (nv-hostengine, dcgm-exporter), nvidia-persistenced, a display server. "
    "Stop it for the while."
)
"""What to look for if the driver says "in use" but lists no process."""


@dataclass(frozen=True, slots=True)
class CudaFacts:
    """The facts that explain why CUDA does not work.

    `built_for` is torch.version.cuda, None for a build without CUDA; `driver_words` is NVML's message if it does not
    answer, else None; `driver_cuda` is the newest CUDA that the driver runs ("12.8"; "n/a" if unknown); `listed` has
    the UUIDs of all GPUs and MIG devices; `visible` is CUDA_VISIBLE_DEVICES; `nodes` are the names in
    /dev/nvidia-caps, and `needed` those that the wanted MIG instance requires, as far as known.
    """

    built_for: str | None
    driver_words: str | None
    driver_cuda: str = "n/a"
    listed: tuple[str, ...] = ()
    visible: str | None = None
    nodes: Collection[str] = ()
    needed: Collection[str] = ()


def cause_of(facts: CudaFacts) -> Cause:
    """The first cause that the facts show; a cause that hides others is checked before them."""
    if facts.built_for is None:
        return "cpu_build"
    if facts.driver_words is not None:
        return "no_driver"
    if not facts.listed:
        return "no_gpu"
    first = first_visible(facts.visible)
    if first.startswith("MIG-") and not (facts.nodes and set(facts.needed) <= set(facts.nodes)):
        return "no_capability"
    if is_stale(facts.visible, facts.listed):
        return "stale_uuid"
    return "old_driver" if _is_older(facts.driver_cuda, facts.built_for) else "unknown"


def cuda_fault(facts: CudaFacts, device_id: str) -> InputFault:
    """The fault that refuses a device, with its cause."""
    problem, remedy = _describe_cause(cause_of(facts), facts)
    return InputFault("device", f"{quoted(device_id)} cannot be used: {problem}", remedy)


def first_visible(visible: str | None) -> str:
    """The first entry of CUDA_VISIBLE_DEVICES; "" if it is unset or empty."""
    return (visible or "").split(",")[0].strip()


def is_stale(visible: str | None, listed: Collection[str]) -> bool:
    """Whether CUDA_VISIBLE_DEVICES begins with a UUID (or a prefix of one) that no device here has."""
    first = first_visible(visible)
    return first.startswith(("MIG-", "GPU-")) and not any(uuid.startswith(first) for uuid in listed)


def _describe_cause(cause: Cause, facts: CudaFacts) -> tuple[str, str]:
    """The problem and the remedy."""
    first = first_visible(facts.visible)
    texts: Mapping[Cause, tuple[str, str]] = {
        "cpu_build": (
            "this build of torch has no CUDA",
            "Install a CUDA build of torch, or use --device cpu."
            + (f" There is no driver either ({facts.driver_words})." if facts.driver_words else ""),
        ),
        "no_driver": (
            f"the NVIDIA driver does not answer ({facts.driver_words})",
            f"Install or load it (nvidia-smi must work), or use --device cpu. {CONTAINER_HINT}",
        ),
        "no_gpu": (
            "the driver lists no GPU",
            f"See nvidia-smi -L and dmesg, or use --device cpu. {CONTAINER_HINT}",
        ),
        "stale_uuid": (
            f"CUDA_VISIBLE_DEVICES names {quoted(first)}, which no device here has as its UUID",
            "Take a UUID of nvidia-smi -L (an instance that is made anew gets another), and measure again.",
        ),
        "no_capability": (
            "this process may not open the MIG instance, as /dev/nvidia-caps lacks "
            + (", ".join(sorted(set(facts.needed) - set(facts.nodes))) or "its nodes"),
            "In a container pass the instance with NVIDIA_VISIBLE_DEVICES or --gpus 'device=MIG-…' (NVIDIA "
            "Container Toolkit), or its nodes of /dev/nvidia-caps with --device. On a host run nvidia-modprobe "
            "-m -f, which makes them.",
        ),
        "old_driver": (
            f"torch was built for CUDA {facts.built_for}, and the driver runs only up to {facts.driver_cuda}",
            "Install a newer driver, or a build of torch for an older CUDA.",
        ),
        "unknown": (
            "driver, build of torch and device are here, and CUDA still refuses",
            "Check that nvidia-smi lists the device without an error, and that no other process holds it in "
            f"exclusive mode. {HOLDERS_HINT}",
        ),
    }
    return texts[cause]


def _is_older(driver: str, wanted: str) -> bool:
    """Whether the driver's CUDA has an older major version than `wanted`; minor versions are compatible."""
    have, want = re.match(r"\d+", driver), re.match(r"\d+", wanted)
    return bool(have and want and int(have[0]) < int(want[0]))


def cuda_facts(
    built_for: str | None,
    device: Mapping[str, Any],
    nodes: Path = CAPABILITY_NODES,
    capabilities: Path = CAPABILITIES,
) -> CudaFacts:
    """Gather this process's facts about a device (a `values.Device` as JSON)."""
    words, driver_cuda = None, "n/a"
    listed: list[str] = []
    needed: set[str] = set()
    try:
        with open_driver() as driver:
            driver_cuda = driver.versions()[1]
            listed, needed = _list_uuids(driver, str(device["uuid"] or ""), capabilities)
    except NvmlFault as fault:
        words = fault.words
    node_names = {path.name for path in nodes.glob("nvidia-cap*")} if nodes.is_dir() else set()
    return CudaFacts(
        built_for=built_for,
        driver_words=words,
        driver_cuda=driver_cuda,
        listed=tuple(listed),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        nodes=frozenset(node_names),
        needed=frozenset(needed),
    )


def _list_uuids(nvml: Nvml, wanted: str, capabilities: Path) -> tuple[list[str], set[str]]:
    """UUIDs of every GPU and MIG device that answers, and the device nodes of the wanted one."""
    uuids: list[str] = []
    needed: set[str] = set()
    for index in range(nvml.gpu_count()):
        try:
            uuids.append(nvml.gpu(index).uuid)
            for item in nvml.mig_devices(index):
                uuids.append(item.uuid)
                if item.uuid == wanted and item.gpu_instance_id is not None:
                    home = capabilities / f"gpu{index}" / "mig" / f"gi{item.gpu_instance_id}"
                    inner = home / f"ci{item.compute_instance_id}"
                    needed |= {name for folder in (home, inner) if (name := _node(folder / "access"))}
        except NvmlFault:
            continue  # another GPU's fault does not affect this one
    return uuids, needed


def _node(access: Path) -> str | None:
    """The device node whose minor number a driver's access file gives; None if the file cannot be read."""
    try:
        match = re.search(r"DeviceFileMinor:\s*(\d+)", access.read_text())
    except OSError:
        return None
    return f"nvidia-cap{match[1]}" if match else None
