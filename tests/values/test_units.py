"""GiB are 2^30 bytes and GB 10^9, in names, figures and words."""

import ast
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchsplit_core.hardware import catalogue, peaks, plain_profiles
from torchsplit_core.placement.request.build import NETWORK_GIB_PER_S
from torchsplit_core.placement.request.fleets import intra_node_gib_per_s, list_gpus, parse_nodes
from torchsplit_core.values.units import GB, GIB, MB, MIB


def test_the_units():
    assert (GIB, MIB, GB, MB) == (1_073_741_824, 1_048_576, 1_000_000_000, 1_000_000)


def test_the_memory_of_a_datasheet_is_gib():
    """nvidia-smi lists the largest slice in GiB: a little less than the sheet's figure, whatever the sheet calls it."""
    for name, gpu in catalogue().items():
        listed = max((item.memory_gib or 0.0 for item in plain_profiles(gpu)), default=0.0)
        whole = next(
            (item for item in plain_profiles(gpu) if item.compute_slices == gpu.compute_slices), None
        )
        told = peaks(name).memory_gib
        assert told is not None and listed <= told
        if whole is not None:
            # Read as 10^9 bytes the sheet's figure would be less than what the slice has.
            assert told * GB / GIB < listed == whole.memory_gib and listed > 0.96 * told, name


def test_links_of_the_catalogue_become_gib():
    assert intra_node_gib_per_s("A100-80GB") == pytest.approx(300e9 / 2**30)
    assert pytest.approx(100e9) == NETWORK_GIB_PER_S * GIB * 8
    assert list_gpus(parse_nodes("1x1xA100-80GB"))[0].memory_gib == 80.0


AMOUNT = re.compile(r"_[gm]b(_per_s)?$", re.IGNORECASE)


def amounts(path: Path) -> set[str]:
    """Every name of GB or MB in a module: variables, attributes, arguments, keywords and fields, but no text."""
    text = path.read_text(encoding="utf-8")
    if not re.search(r"_[gm]b", text, re.IGNORECASE):
        return set()
    names = (
        getattr(node, field, None)
        for node in ast.walk(ast.parse(text))
        for field in ("id", "attr", "arg", "name")
    )
    return {name for name in names if isinstance(name, str) and AMOUNT.search(name)}


def test_what_is_named_gb_counts_a_thousand_million_bytes():
    known = {"link_gb_per_s", "network_gb_per_s", "memory_gb_per_s", "nvlink_gb_per_s", "pcie_gb_per_s"}
    # Links of a training fleet: the contract's names, 10^9 bytes/s.
    known |= {"inside_gb_per_s", "between_gb_per_s", "ETHERNET_GB_PER_S"}
    # A link between slices, which a request has as link_gb_per_s.
    known |= {"FOUR_LINK_GB_PER_S"}
    # What the front needs for 10^6 bytes: the request's name.
    known |= {"ms_per_mb"}
    for folder in ("torchsplit_core", "app"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            assert amounts(path) <= known, (path, amounts(path) - known)
