"""The store of workspaces: contents on disk that survive a power cut, and the database of their names.

The rest of the program uses `store.Store`.
"""

from torchsplit_core.workspace.blobs import BlobStore
from torchsplit_core.workspace.database import SCHEMA, Database
from torchsplit_core.workspace.faults import StoreFault, disk_problem
from torchsplit_core.workspace.maintenance import (
    make_daily_copy,
    remove_orphaned_job_files,
    remove_orphaned_runs,
)

__all__ = [
    "SCHEMA",
    "BlobStore",
    "Database",
    "StoreFault",
    "disk_problem",
    "make_daily_copy",
    "remove_orphaned_job_files",
    "remove_orphaned_runs",
]
