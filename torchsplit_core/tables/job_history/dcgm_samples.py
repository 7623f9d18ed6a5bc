"""Reads samples of GPUs from DCGM: CSV with the column names of `dcgmi dmon` or of dcgm-exporter, and a timestamp."""

from __future__ import annotations

from datetime import tzinfo

from torchsplit_core.tables.cell_parsing import CellFault, parse_not_negative
from torchsplit_core.tables.job_history.moments import parse_moment
from torchsplit_core.tables.job_history.records import GpuSample
from torchsplit_core.tables.record_fields import RecordFields

COLUMNS = {
    "moment": ("timestamp", "time", "datetime", "date"),
    "gpu": ("uuid", "gpu_uuid", "gpu", "gpu_id", "gpuid", "entity", "device"),
    "slice": ("gpu_i_id", "gpu_instance_id"),
    "host": ("hostname", "host", "node", "instance"),
    "job": ("hpc_job", "job_id", "jobid"),
    "utilisation": ("dcgm_fi_dev_gpu_util", "gputl", "gpu_util"),
    "sm_active": ("dcgm_fi_prof_sm_active", "smact", "sm_active"),
    "memory": ("dcgm_fi_dev_fb_used", "fbusd", "fb_used"),
}
"""Ours → DCGM's names, in lower case and joined by _ (docs.nvidia.com/datacenter/dcgm, field identifiers)."""
METRICS = ("utilisation", "sm_active", "memory")
NEEDED = ("moment", "gpu")

_BLANKS = frozenset(str(base + kind) for base in (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0) for kind in range(16))
"""DCGM's numbers for "no data" (dcgm_structs.h, DCGM_INT32_BLANK and DCGM_INT64_BLANK and those after them)."""
MIB_PER_GIB = 1024


def parse_sample(fields: RecordFields, zone: tzinfo) -> GpuSample | None:
    """The sample of a row; None if it has no figure. Raises CellFault at the first bad cell."""
    moment = fields.read("moment", lambda cell: parse_moment(cell, zone))
    per_cent = _figure(fields, "utilisation", 100, "Give per cent, as DCGM does.")
    sm_active = _figure(fields, "sm_active", 1, "Give a share from 0 to 1, as DCGM does.")
    memory_mib = _figure(fields, "memory", 1e8, "Give MiB, as DCGM does.")
    if per_cent is None and sm_active is None and memory_mib is None:
        return None
    device = fields.text("gpu")
    if fields.text("slice"):
        device += f"/{fields.text('slice')}"
    return GpuSample(
        moment,
        (fields.text("host"), device),
        None if per_cent is None else per_cent / 100,
        sm_active,
        None if memory_mib is None else memory_mib / MIB_PER_GIB,
        fields.text("job"),
    )


def _figure(fields: RecordFields, column: str, most: float, remedy: str) -> float | None:
    text = fields.text(column)
    if not fields.has(column) or text in _BLANKS:
        return None
    comma = fields.layout.decimal_comma
    value = fields.read(column, lambda cell: parse_not_negative(cell, decimal_comma=comma))
    if value > most:
        raise CellFault(f"is {text}, above {most:g}", remedy, column)
    return value
