"""Colours stay apart for everyone, and text on them can be read in either theme."""

import tomllib
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from torchsplit_core.pictures.colours import (
    FAINTEST_STAGE,
    FULL_STAGE,
    LOAD_OPACITY,
    PALETTE,
    PLAIN_STAGE,
    model_colours,
)


def test_a_model_keeps_its_colour_and_names_may_repeat():
    names = [f"m{i}" for i in range(15)]
    colours = model_colours(names)
    assert list(colours) == names
    assert len(set(colours.values())) == len(PALETTE) == 12
    assert model_colours([*names[:3], "m0", "m2"]) == {name: colours[name] for name in names[:3]}
    assert colours["m12"] == colours["m0"]


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def cielab(value: np.ndarray) -> np.ndarray:
    """sRGB (linear) to CIELAB with D65."""
    to_xyz = np.array([
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ])  # fmt: skip
    x, y, z = (to_xyz @ value) / np.array([0.95047, 1.0, 1.08883])
    fx, fy, fz = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


# Machado, Oliveira, Fernandes: A physiologically-based model for simulation of color vision
# deficiency, 2009; severity 1.0.
SIGHT = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_stay_apart_for_everyone(sight):
    seen = [cielab(np.clip(SIGHT[sight] @ linear(colour), 0, 1)) for colour in PALETTE]
    least = min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2))
    assert least > (24 if sight == "usual" else 13)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_on_every_fill_has_enough_contrast(theme):
    config = tomllib.loads(Path(".streamlit/config.toml").read_text())["theme"][theme]
    plane = {
        name: np.array([int(config[name][i : i + 2], 16) for i in (1, 3, 5)]) / 255
        for name in ("textColor", "backgroundColor", "secondaryBackgroundColor")
    }
    text = plane.pop("textColor")

    def luminance(value):
        lin = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
        return float(lin @ np.array([0.2126, 0.7152, 0.0722]))

    def contrast(one, two):
        low, high = sorted((luminance(one), luminance(two)))
        return (high + 0.05) / (low + 0.05)

    for ground in plane.values():
        for colour in PALETTE:
            ink = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
            for opacity in (PLAIN_STAGE, FAINTEST_STAGE, FULL_STAGE, LOAD_OPACITY):
                seen = opacity * ink + (1 - opacity) * ground
                assert contrast(text, seen) >= 4.5, (colour, opacity, theme)
        faint = 0.8 * text + 0.2 * ground
        assert contrast(faint, ground) >= 4.5
