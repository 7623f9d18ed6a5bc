"""The parts of a cut model: written as files, read back and run.

`export_stages` writes them (`export_first` those of the first cut that can be written); `open_stages` loads them into
this process. torch is loaded only where parts are run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.stages.export import ExportedCut, export_first, export_stages
    from torchsplit_core.stages.export_folder import MANIFEST, open_manifest
    from torchsplit_core.stages.staged_model import StagedModel, open_stages

__all__ = [
    "MANIFEST",
    "ExportedCut",
    "StagedModel",
    "export_first",
    "export_stages",
    "open_manifest",
    "open_stages",
]

__getattr__ = on_demand(
    __name__,
    {
        "export": "ExportedCut export_first export_stages",
        "export_folder": "MANIFEST open_manifest",
        "staged_model": "StagedModel open_stages",
    },
)
