"""Bytes across a cut by batch size: a fixed part, and a part per request.

    bytes across a cut with batches of b = cut_bytes_fixed + b · cut_bytes_per_request

Its values are those of `cut_bytes`, sized by the symbols of their shapes (graph.sizes). The line always equals
`cut_bytes` at the traced batch t. It is exact at every batch if the bytes are linear in it, as nearly always. Otherwise
(a size rounded up, a minimum size), its slope is the steepest from t to any of 2t, 4t, … 64t, so these batches are
never underestimated, while smaller ones may be wrong. Superlinear growth (b · b) has no upper line that meets it at t
and starts at 0 or more: it is taken as proportional, right at t and too small above.

A symbol that is not the batch (a free sequence length) keeps its traced value; a data-dependent one follows the batch.
So does a value without a shape that depends on an input, and all values do if a size of the graph is no arithmetic
expression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from torchsplit_core.graph import TorchGraph
from torchsplit_core.graph.sizes import Sizes
from torchsplit_core.values import InputFault

_BATCH_MULTIPLES = (2, 4, 8, 16, 32, 64)
"""Batches that are evaluated, in traced batches."""


class CutSizes:
    """Growth of one graph's values with the batch."""

    def __init__(self, graph: TorchGraph) -> None:
        self._graph = graph

    def split(self, stages: Sequence[Sequence[str]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Fixed bytes, and bytes a request, of every cut between stages (ids of nodes)."""
        fits = [self._linear_fit(names) for names in _leaving(self._graph, stages)[:-1]]
        return tuple(fixed for fixed, _ in fits), tuple(each for _, each in fits)

    def _linear_fit(self, names: Sequence[str]) -> tuple[float, float]:
        """Intercept and slope for the values that leave a stage together."""
        batch = self._graph.traced_batch
        at_trace = sum(self._graph.by_id[name].output_bytes for name in names)
        grown = {k: sum(self._bytes(name, k) for name in names) for k in _BATCH_MULTIPLES}
        slope = max(0.0, *((size - at_trace) / ((k - 1) * batch) for k, size in grown.items()))
        each = min(slope, at_trace / batch)
        return at_trace - each * batch, each

    def _bytes(self, name: str, times: int) -> float:
        """Bytes of a value at `times` traced batches."""
        traced_bytes = self._graph.by_id[name].output_bytes
        if not self._sizes:
            return float(traced_bytes * times)
        at_trace = self._sizes[1].bytes(name)
        return traced_bytes * (self._sizes[times].bytes(name) / at_trace if at_trace else times)

    @cached_property
    def _sizes(self) -> Mapping[int, Sizes]:
        """The sizes of the graph's values by traced batches; empty if a size cannot be evaluated."""
        batch = self._graph.traced_batch
        try:
            by_times = {times: Sizes(self._graph, times * batch) for times in (1, *_BATCH_MULTIPLES)}
            for node in self._graph.nodes:
                for sizes in by_times.values():
                    sizes.shape(node.id)
        except InputFault:
            return {}
        return by_times


def _leaving(graph: TorchGraph, stages: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """For each stage, the values that other stages read, each once; weights go with their readers."""
    home = {name: number for number, stage in enumerate(stages) for name in stage}
    return [
        tuple(name for name in stage if any(home.get(user, number) != number for user in graph.users[name]))
        for number, stage in enumerate(stages)
    ]
