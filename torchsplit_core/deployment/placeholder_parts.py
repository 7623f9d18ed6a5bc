"""Placeholder parts, with which a plan and request are validated before minutes go into writing the real ones."""

from __future__ import annotations

from torchsplit_core.values import PlanModel, StageManifest, Variant
from torchsplit_core.values.stages import StagePart, StageSlot, StageValue


def placeholder_manifest(model: PlanModel, variant: Variant) -> StageManifest:
    """A chain of the variant's stages, each with one tensor, the batch first, to the next."""
    values = [
        StageValue(f"value{number}", "tensor", "float32", ("s0", 1), 4)
        for number in range(len(variant.stages) + 1)
    ]
    parts = tuple(
        StagePart(stage.name, f"stage{number}.pt2", "", 0, 1, 0, (values[number],), (values[number + 1],))
        for number, stage in enumerate(variant.stages)
    )
    return StageManifest(
        model.source or "", "", "", 1, (StageSlot(values[0].name),), "", (StageSlot(values[-1].name),), "", parts, (),
        (0,) * (len(parts) - 1),
    )  # fmt: skip
