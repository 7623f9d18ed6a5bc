"""The parts of a cut model: written as files, read back, run in one process or in one process a stage.

`export_stages` writes them (`export_first` those of the first cut that can be written), `open_stages`
and `run_stages` run them here, `StagePipeline` in processes of their own. torch is loaded only where parts are run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.stages.export import ExportedCut, export_first, export_stages
    from torchsplit_core.stages.export_folder import MANIFEST, open_manifest
    from torchsplit_core.stages.pipeline import StagePipeline
    from torchsplit_core.stages.staged_model import StagedModel, open_stages, run_stages

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

__getattr__ = on_demand(
    __name__,
    {
        "export": "ExportedCut export_first export_stages",
        "export_folder": "MANIFEST open_manifest",
        "pipeline": "StagePipeline",
        "staged_model": "StagedModel open_stages run_stages",
    },
)
