"""The parts of a cut model: written as files, read back, run in one process or in one process a stage.

`export_stages` writes them (`export_first` those of the first cut that can be written), `open_stages`
and `run_stages` run them here, `StagePipeline` in processes of their own. torch is loaded only where parts are run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchsplit_core.stages.export import ExportedCut, export_first, export_stages
from torchsplit_core.stages.folder import MANIFEST, open_manifest

if TYPE_CHECKING:
    from torchsplit_core.stages.pipeline import StagePipeline
    from torchsplit_core.stages.run import StagedModel, open_stages, run_stages

__all__ = [
    "MANIFEST",
    "ExportedCut",
    "StagePipeline",
    "StagedModel",
    "export_first",
    "export_stages",
    "open_manifest",
    "open_stages",
    "run_stages",
]


def __getattr__(name: str) -> Any:
    """What needs torch, loaded when first used."""
    if name == "StagePipeline":
        from torchsplit_core.stages import pipeline

        return pipeline.StagePipeline
    if name in ("StagedModel", "open_stages", "run_stages"):
        from torchsplit_core.stages import run

        return getattr(run, name)
    raise AttributeError(name)
