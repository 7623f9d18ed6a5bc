"""One colour a model, the same on every page, chart and theme.

Twelve colours in the spirit of Okabe and Ito's set (jfly.uni-koeln.de/color), softened, and
chosen by a farthest-point search so that any two differ by a CIELAB distance of at least 13
also with protanopia, deuteranopia or tritanopia (as modelled by Machado et al., 2009). They
stay apart longest in this order. No colour is ever the only sign: names stand beside it.
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
"""For a name that no colour was given to."""

PLAIN_STAGE, FAINTEST_STAGE, FULL_STAGE = 0.26, 0.12, 0.46
"""Opacities of a model's colour on a slice: of a whole model, of the first and of the last stage of a cut one.

Text of either theme keeps a contrast of 4.5 on the fullest over the page.
"""

LOAD_OPACITY = 0.38
"""Opacity of a colour over a drawing's ground, for what is in use."""


def model_colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name in the order given (a name given twice keeps its first).

    Pass all models of the workspace's request, in its order, on every page: then a model has
    one colour everywhere. From the thirteenth on colours repeat.
    """
    unique = dict.fromkeys(names)
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(unique)}
