"""The tables by which listings become types and profiles of the catalogue, and the program for sites with them."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from torchsplit_core.hardware.catalogue import catalogue, gpu_type
from torchsplit_core.hardware.host_state.smi_listings import short_product

WITHOUT_MIG = {
    "Tesla V100-SXM2-32GB": "V100-SXM2-32GB",
    "Tesla T4": "T4-16GB",
    "A10": "A10-24GB",
    "A40": "A40-48GB",
    "L4": "L4-24GB",
    "L20": "L20-48GB",
    "L40S": "L40S-48GB",
    "GeForce RTX 4090": "RTX4090-24GB",
}
"""Types without MIG by their names in nvidia-smi -L; those with MIG have theirs in the catalogue."""

_EMPTY_TABLES = "TABLES: Dict[str, Dict[str, Any]] = {}\n"


@cache
def tables() -> dict[str, Any]:
    """The tables that `smi_listings` needs, plain as JSON."""
    kinds = [gpu_type(name) for name in catalogue()]
    products = {short_product(name): kind.name for kind in kinds for name in kind.product_names}
    return {
        "pci": {number.lower(): kind.name for kind in kinds for number in kind.pci_device_ids},
        "products": {**products, **WITHOUT_MIG},
        "profiles": {
            kind.name: {
                profile.name: [profile.profile_id, profile.memory_slices] for profile in kind.profiles
            }
            for kind in kinds
        },
    }


def site_program() -> str:
    """A Python program, at least 3.6 and without packages, that writes the state of the host on which it runs."""
    source = (
        files("torchsplit_core.hardware.host_state").joinpath("smi_listings.py").read_text(encoding="utf-8")
    )
    assert source.count(_EMPTY_TABLES) == 1, "the program has one place for its tables"
    filled = _EMPTY_TABLES.replace("{}", json.dumps(tables(), indent=1))
    return f"#!/usr/bin/env python3\n{source.replace(_EMPTY_TABLES, filled)}"
