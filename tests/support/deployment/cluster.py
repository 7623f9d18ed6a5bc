"""A node's devices as NVIDIA's driver publishes them, and an allocator that searches them plainly.

It shares no code with the product: overlap is counted by memory slots and compute slices, as the driver counts it.
"""

import json
from collections import Counter
from functools import cache
from typing import Any, NamedTuple

import celpy
from celpy.adapter import json_to_cel

from tests.support.deployment.helpers import CATALOGUE

DRIVER = "gpu.nvidia.com"
TYPES = {row["gpu"]: row for row in json.loads(CATALOGUE.read_text())["gpus"]}
PRODUCTS = {
    "A100-80GB": "NVIDIA A100-SXM4-80GB", "A30-24GB": "NVIDIA A30", "H100-SXM5-80GB": "NVIDIA H100 80GB HBM3",
    "GH200-96GB": "NVIDIA GH200 480GB", "H200-141GB": "NVIDIA H200", "L4-24GB": "NVIDIA L4",
    "L40S-48GB": "NVIDIA L40S",
    "RTX-PRO-6000-Blackwell-96GB": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "RTX-PRO-6000-Blackwell-Max-Q-96GB": "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
}  # fmt: skip
CLASSES = {
    "gpu.nvidia.com": f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'",
    "mig.nvidia.com": f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'mig'",
}
"""What the driver's own classes select."""


class Device(NamedTuple):
    """A published device: its place in the order, attributes, and what it takes of its GPU's counters."""

    order: tuple[str, int, str]
    attributes: tuple[tuple[str, str], ...]
    counters: tuple[tuple[str, int], ...]

    @property
    def gpu(self) -> tuple[str, int]:
        return self.order[:2]


def published(gpu_type: str, host: str = "", index: int = 0, *, whole: bool = False) -> list[Device]:
    """All devices of a GPU under dynamic MIG: itself where it is whole, else every position of every profile."""
    uuid, product = f"GPU-{host}-{index}", PRODUCTS[gpu_type]
    common = (("productName", product),)
    if whole:
        return [
            Device((host, index, f"gpu-{index}"), (("type", "gpu"), ("uuid", uuid), *common), (("gpu", 1),))
        ]
    return [
        Device(
            (host, index, f"gpu-{index}-mig-{row['profile'].replace('.', '')}-{row['profile_id']}-{start}"),
            (("type", "mig"), ("parentUUID", uuid), ("profile", row["profile"]), *common),
            (
                ("compute", row["compute_slices"]),
                (row["profile"], 1),
                *((f"memory-{slot}", 1) for slot in range(start, start + row["placement_size"])),
            ),
        )
        for row in TYPES[gpu_type]["profiles"]
        for start in row["placement_starts"]
    ]


def limits(gpu_type: str) -> dict[str, int]:
    row = TYPES.get(gpu_type, {"compute_slices": 0, "profiles": []})
    return {"compute": row["compute_slices"], **{p["profile"]: p["max_instances"] for p in row["profiles"]}}


@cache
def selects(expression: str, attributes: tuple[tuple[str, str], ...]) -> bool:
    """Whether a CEL expression selects a device. A fault of the expression is one of the test."""
    environment = celpy.Environment()
    program = environment.program(environment.compile(expression))
    device = {"driver": DRIVER, "attributes": {DRIVER: dict(attributes)}}
    return bool(program.evaluate({"device": json_to_cel(device)}))


def matches(request: dict[str, Any], device: Device) -> bool:
    """The class first: selectors of a request are only asked of its devices, which all have what they read."""
    exactly = request["exactly"]
    return selects(CLASSES[exactly["deviceClassName"]], device.attributes) and all(
        selects(selector["cel"]["expression"], device.attributes) for selector in exactly["selectors"]
    )


class Node:
    """Devices in their order of publication, and what is taken."""

    def __init__(self, devices: list[Device], kinds: dict[tuple[str, int], str]) -> None:
        self.devices = sorted(devices, key=lambda device: device.order)
        self.limits = {gpu: limits(kind) for gpu, kind in kinds.items()}
        self.taken: list[Device] = []

    def fits(self, device: Device, chosen: list[Device]) -> bool:
        used = Counter(dict(device.counters))
        for other in (*self.taken, *chosen):
            if other.gpu == device.gpu:
                used.update(dict(other.counters))
        return all(count <= self.limits[device.gpu].get(name, 1) for name, count in used.items())

    def allocate(self, claim: dict[str, Any], host: str | None = None) -> list[Device] | None:
        """The first devices that fit, depth first within this claim; taken from then on. None: it strands."""
        devices = claim["spec"]["devices"]
        constraints = [row["matchAttribute"].partition("/")[2] for row in devices.get("constraints", ())]

        def search(chosen: list[Device]) -> list[Device] | None:
            if len(chosen) == len(devices["requests"]):
                return chosen
            request = devices["requests"][len(chosen)]
            for device in self.devices:
                if host not in (None, device.gpu[0]) or not matches(request, device):
                    continue
                values = [dict(entry.attributes) for entry in (*chosen, device)]
                alike = all(
                    None not in {row.get(name) for row in values}
                    and len({row.get(name) for row in values}) == 1
                    for name in constraints
                )
                if alike and self.fits(device, chosen):
                    result = search([*chosen, device])
                    if result is not None:
                        return result
            return None

        result = search([])
        self.taken += result or []
        return result


def plain_claim(profile: str) -> dict[str, Any]:
    """The claim of a pod by itself."""
    expression = f"device.attributes['{DRIVER}'].profile == '{profile}'"
    exactly = {"deviceClassName": "mig.nvidia.com", "selectors": [{"cel": {"expression": expression}}]}
    return {"spec": {"devices": {"requests": [{"name": "slice", "exactly": exactly}]}}}
