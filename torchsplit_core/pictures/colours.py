"""One colour per model, the same on every page and chart and in every theme.

Twelve colours similar to Okabe and Ito's set (jfly.uni-koeln.de/color) but softer, chosen by a farthest-point search so
that any two have a CIELAB distance of at least 13, also with protanopia, deuteranopia or tritanopia (as modelled by
Machado et al., 2009). Their order keeps the first k as distinct as possible, for every k. A colour is never the only
sign: the name is beside it.
"""

from __future__ import annotations

from collections.abc import Iterable

PALETTE = (
    "#3f66cc",
    "#e2a11c",
    "#d9532f",
    "#37a06a",
    "#93b0c9",
    "#8c547a",
    "#c5b367",
    "#6d4be0",
    "#dc7de3",
    "#416c52",
    "#6c6ca7",
    "#f36da3",
)

UNKNOWN = "#7f8790"
"""For a name without a colour."""

PLAIN_STAGE, FAINTEST_STAGE, FULL_STAGE = 0.26, 0.12, 0.46
"""Opacities of a model's colour on a slice: a whole model, the first and the last stage of a cut model.

Text of either theme has a contrast of at least 4.5 even on the strongest, over the page's background.
"""

LOAD_OPACITY = 0.38
"""Opacity of a colour over a drawing's background, for parts in use."""


def model_colours(names: Iterable[str]) -> dict[str, str]:
    """Assign colours to the names in order (a repeated name keeps its first colour).

    Pass all models of the workspace's request, in its order, on every page, so that a model has the same colour
    everywhere. Colours repeat from the thirteenth name on.
    """
    unique = dict.fromkeys(names)
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(unique)}
