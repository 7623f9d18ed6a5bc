"""Where the plain data of a file differs from a value's: what it leaves out, and how it calls a whole GPU.

A field that was added after the first files of a format were written is left out where it has its default: requests
that do not use it keep their text and their fingerprint. Which fields these are stands here by format, in one table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from torchsplit_core.values.strategy.request import StrategyFix

Data = dict[str, Any]

_SEQUENCES: Data = {"sequences_in_flight": None}
_SEGMENT: Data = {"gpu_types": {}, "num_gpus": 0, "workload_per_gpu": 0.0}
_MEASURED_POINT: Data = {"device": None, "sequence_length": None}

LEFT_OUT: Mapping[str, Mapping[str, Data]] = {
    "torchsplit.profile": {
        "": {"failures": [], "name": ""},
        "rows": {**_MEASURED_POINT, "percentiles_ms": None, "memory_parts_gib": None, "pace": None},
        "failures": _MEASURED_POINT,
        "nodes": {"time_shares": {}, "times_ms": {}},
    },
    "torchsplit.plan_request": {
        "": {"network_gb_per_s": None, "front": None},
        "solver": {"plan_at": "nominal"},
        "objective": {"survives": 0},
        "gpus": {"node": None, "mig": True, "cost": None},
        "models": {
            "source": None,
            "max_response_ms": None,
            "response_percentile": 95.0,
            "arrivals": None,
            "bytes_per_request": None,
            "tier": 0,
        },
        "models.variants": {"allowed": True, "cut_bytes_per_request": []},
        "models.variants.stages": {"nodes": []},
        "models.variants.stages.points": {"low_rps": None, "high_rps": None, "pace": None},
    },
    "torchsplit.plan": {
        "": {
            "explanation": None,
            "front": None,
            "cost_per_hour": None,
            "cost_per_million_requests": None,
        },
        "objective": {"routed": None, "levels": []},
        "models": {"response_ms": None, "max_wait_ms": None, "response_bound_by": None, "front_rps": None},
        # A demand names either a model or, for a co-location, models.
        "conflicts.demands": {"model": None, "models": None},
    },
    "torchsplit.partition": {"candidates": {"cut_bytes_fixed": [], "cut_bytes_per_request": []}},
    "torchsplit.placement_request": {
        "": {"max_replicas": 1},
        "model": {"sequences_in_flight": None, "prefill_chunk": None},
    },
    "torchsplit.placement": {
        "": {"replicas": [], **_SEQUENCES},
        "segments": _SEGMENT,
        "replicas": _SEQUENCES,
        "replicas.segments": _SEGMENT,
    },
    "torchsplit.placement_frontier": {"points": _SEQUENCES, "points.segments": _SEGMENT},
    "torchsplit.simulation_request": {
        "": {"find": None},
        "models": {"cut_bytes": [], "cut_bytes_per_request": [], "front_ms": 0.0},
        "servers": {"pace": None},
        "servers.service": {"cv": None},
    },
    "torchsplit.simulation": {"models": {"response_low_ms": None, "response_high_ms": None}},
    "torchsplit.measurement": {
        "": {"in_place": {}},
        "models": {
            "replayed_ms": {"p50": None, "p95": None, "p99": None},
            "simulated_low_ms": None,
            "simulated_high_ms": None,
        },
    },
    "torchsplit.strategy": {
        "candidates": {"not_exportable": None},
        "candidates.stages": {"memory_gib_per_stage": [], "seconds_per_stage": [], "group": 0},
    },
    "torchsplit.strategy_request": {
        "fix": dict.fromkeys(field.name for field in fields(StrategyFix)),
        "model": {"measured_steps": []},
    },
    "torchsplit.evaluation": {
        "cases.models": {
            **dict.fromkeys(("p50_low_ms", "p50_high_ms", "p95_low_ms", "p95_high_ms")),
            "overloaded_at_low": False,
            "bytes_across_cuts_per_s": None,
        },
    },
}
"""Format → path of keys to objects ("": the file itself) → their fields that are left out, with these values."""

PROFILED: Mapping[str, str] = {
    "torchsplit.plan_request": "models.variants.stages.points",
    "torchsplit.plan": "gpus.slices",
    "torchsplit.measurement": "points",
}
"""Format → path to the objects that name a MIG profile, or none for a whole GPU."""


def leave_out(format_name: str, data: Data) -> None:
    """Take out of a file's data what LEFT_OUT says."""
    for path, defaults in LEFT_OUT.get(format_name, {}).items():
        for entry in _objects_at(data, path):
            for key, default in defaults.items():
                if key in entry and entry[key] == default:
                    del entry[key]


def rename_profiles(format_name: str, data: Data, old: str | None, new: str | None) -> None:
    """A whole GPU is null in files, and a text among values: profiles are sorted and compared."""
    if format_name in PROFILED:
        for entry in _objects_at(data, PROFILED[format_name]):
            if entry["profile"] == old:
                entry["profile"] = new


def _objects_at(data: Data, path: str) -> Iterator[Data]:
    """The objects at a path; of a list on the way every entry."""
    if not path:
        yield data
        return
    key, _, rest = path.partition(".")
    value = data.get(key, [])
    for entry in value if isinstance(value, list) else (value,):
        yield from _objects_at(entry, rest)
