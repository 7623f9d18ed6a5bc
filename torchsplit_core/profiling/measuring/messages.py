"""The messages of a measuring child, validated: the model's code shares its process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field

from torchsplit_core.files.fields import Count, Facts, NonNegative, Positive, Whole
from torchsplit_core.graph.serialization import graph_from_dict
from torchsplit_core.isolation import AnswerSchema, schema_reader
from torchsplit_core.values.profile import FailureReason


class _Percentile(AnswerSchema):
    value: NonNegative
    low: NonNegative | None
    high: NonNegative | None


class _Latency(AnswerSchema):
    runs: Count
    p50: _Percentile
    p95: _Percentile
    p99: _Percentile


class _Rates(AnswerSchema):
    rps: Positive
    low_rps: Positive
    high_rps: Positive


class _Peak(AnswerSchema):
    weight_bytes: Whole
    activation_bytes: Whole
    transient_bytes: Whole


_Segment = Annotated[list[NonNegative], Field(min_length=3, max_length=3)]
_SegmentedRounds = list[Annotated[list[NonNegative | list[_Segment]], Field(min_length=2, max_length=2)]]
"""As made by `rounds.segment_rounds`."""


class _Resident(AnswerSchema):
    batch_size: Count
    bytes: Whole
    course: _SegmentedRounds


class _Batch(AnswerSchema):
    batch_size: Count
    processes: Count = 1
    latency: _Latency
    mean_ms: Positive
    mean_low_ms: Positive
    mean_high_ms: Positive
    rates: _Rates | None = None
    peak: _Peak | None
    finite: bool
    grew_bytes: Whole
    looks: Count = 1
    unsteady: str | None = None
    course: _SegmentedRounds = []


class _Operation(AnswerSchema):
    id: str
    least_ms: NonNegative
    mean_ms: NonNegative
    deviation_ms: NonNegative
    most_ms: NonNegative
    output_bytes: Whole


class _Nodes(AnswerSchema):
    batch_size: Count
    runs_ms: Annotated[
        list[Annotated[list[Positive], Field(min_length=2, max_length=2)]], Field(min_length=1)
    ]
    items: list[_Operation]


class _Failure(AnswerSchema):
    kind: Literal["batch", "nodes", "look"]
    batch_size: Count
    reason: FailureReason
    message: str


_READERS: dict[str, Callable[[Any], Any]] = {
    "graph": graph_from_dict,
    "batch_sizes": schema_reader(list[Count]),
    "environment": schema_reader(Facts),
    "begin": schema_reader(Annotated[list[str | int], Field(min_length=2, max_length=2)]),
    "batch": schema_reader(_Batch),
    "nodes": schema_reader(_Nodes),
    "failure": schema_reader(_Failure),
    "held": schema_reader(_Resident),
}


def parse_message(message: dict[str, Any]) -> tuple[str, Any]:
    """One message, {kind: content}, as its kind and its value; a graph becomes the contract's.

    Raises ValueError, KeyError, TypeError or AttributeError for a malformed one.
    """
    ((kind, content),) = message.items()
    return kind, _READERS[kind](content)
