"""What the store stands on: contents on disk that survive a power cut, and the database of their names.

`storage.Store` is what the rest of the program uses.
"""

from torchsplit_core.workspace.blobs import Blobs
from torchsplit_core.workspace.database import SCHEMA, Database
from torchsplit_core.workspace.faults import StoreFault, disk_trouble
from torchsplit_core.workspace.health import copy_of_the_day, sweep_job_files, sweep_runs

__all__ = [
    "SCHEMA",
    "Blobs",
    "Database",
    "StoreFault",
    "copy_of_the_day",
    "disk_trouble",
    "sweep_job_files",
    "sweep_runs",
]
