"""The measured library as samples of the curves."""

from benchmarks.curve_accuracy import library
from torchsplit_core.curves import Query, Sample

__all__ = ["library", "query_of", "rows"]


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
