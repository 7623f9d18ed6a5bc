"""The measured library as samples of the curves."""

from __future__ import annotations

from functools import lru_cache

from torchsplit_core.curves import Query, Sample
from torchsplit_core.profiling.library import measured_library


@lru_cache(maxsize=1)
def library() -> dict[str, tuple[Sample, ...]]:
    """Rows by model."""
    by_model: dict[str, list[Sample]] = {}
    for row in measured_library():
        by_model.setdefault(row.model, []).append(
            Sample(
                row.model,
                row.compute_slices,
                row.batch_size,
                row.processes,
                row.throughput_rps,
                row.latency_ms,
            )
        )
    return {name: tuple(samples) for name, samples in by_model.items()}


def rows(model: str, sizes: tuple[float, ...] = (1, 2, 3, 4, 7), processes: int | None = 1) -> list[Sample]:
    """Rows of a model on some slices; `processes` None for any number."""
    return [
        sample
        for sample in library()[model]
        if sample.size in sizes and processes in (None, sample.processes)
    ]


def query_of(sample: Sample) -> Query:
    """The question to which the sample is the answer."""
    return Query(sample.model, sample.size, sample.batch_size, sample.processes)
