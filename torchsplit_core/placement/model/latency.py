"""Seconds of one pass of the batch through a pipeline, from its first segment to the end of its last."""

from __future__ import annotations

from collections.abc import Iterable

from torchsplit_core.placement.model.memory import is_decode
from torchsplit_core.values import PlacedLink, PlacedSegment, PlacementRequest


def tokens_per_pass(request: PlacementRequest) -> int:
    """Tokens of a pass: in decode one a sequence, else those of all sequences."""
    model = request.model
    return model.batch_size * (1 if is_decode(request) else model.sequence_length)


def link_tokens_per_s(request: PlacementRequest, value: float) -> float:
    """A link's tokens/s from its value in the units of the request."""
    if request.units == "tokens_per_s":
        return value
    return value * request.model.batch_size * request.model.sequence_length


def latency_s(
    request: PlacementRequest, segments: Iterable[PlacedSegment], links: Iterable[PlacedLink]
) -> float:
    """Seconds of a pass: every segment and link once, without overlap.

    In decode the time per token of a sequence, in prefill the time to its first token.
    """
    per_token = [1.0 / part.throughput for part in segments]
    per_token += [1.0 / link_tokens_per_s(request, link.throughput) for link in links]
    return tokens_per_pass(request) * sum(per_token)
