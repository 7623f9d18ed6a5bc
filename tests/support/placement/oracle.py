"""A look at every pipeline, from the rules as docs/file-formats.md has them; nothing of the room is used.

Proportional parts: a linear rate that rises with the batch, so a part's time does too, and the least common time is
found from the parts by SciPy's root finder.
"""

from functools import cache
from itertools import combinations

import numpy as np
from scipy.optimize import brentq

from torchsplit_core.values import LinearThroughput, PlacementRequest, TableThroughput


def best_value(request: PlacementRequest) -> float:
    """The throughput of the best pipeline; 0 where there is none."""
    model, count = request.model, len(request.gpus)
    tokens = model.batch_size * model.sequence_length
    transfer_gib = tokens * model.hidden_size * model.bytes_per_element / 1024**3
    factor = tokens if request.units == "tokens_per_s" else 1
    worth = cache(lambda chosen, layers: segment_value(request, chosen, layers))
    best = 0.0

    def go_on(done: int, last: tuple[int, ...], free: frozenset[int], value: float) -> None:
        nonlocal best
        if done == model.layers:
            best = max(best, value)
            return
        for size in range(1, request.max_gpus_per_segment + 1):
            for chosen in combinations(sorted(free), size):
                joined = value
                for i in last:
                    for j in chosen:
                        joined = min(joined, request.bandwidth_gib_per_s[i][j] / transfer_gib * factor)
                for layers in range(1, model.layers - done + 1):
                    least = min(joined, worth(chosen, layers))
                    if least > best:
                        go_on(done + layers, chosen, free - set(chosen), least)

    go_on(0, (), frozenset(range(count)), float("inf"))
    return best


def segment_value(request: PlacementRequest, chosen: tuple[int, ...], layers: int) -> float:
    """Tokens/s of these layers on the GPUs with these indices; 0 where memory or the rule of one type forbids it."""
    model, n = request.model, len(chosen)
    gpus = [request.gpus[i] for i in chosen]
    if request.same_type_segments and len({gpu.type for gpu in gpus}) > 1:
        return 0.0
    per_sequence = model.sequence_length * (3 * model.hidden_size + model.ffn_size) * model.bytes_per_element
    gb = 1.15 * per_sequence / 1024**3
    room = [(gpu.memory_gib - layers * model.layer_weight_gib) / gb for gpu in gpus]
    if request.split == "equal" or n == 1:
        part = model.batch_size / n
        if min(room) < part:
            return 0.0
        least = min(rate(request, gpu.type, part, layers) for gpu in gpus)
        return least if n == 1 else least * n * request.communication_efficiency
    room = [min(most, float(model.batch_size)) for most in room]
    if min(room) <= 0 or sum(room) < model.batch_size:
        return 0.0

    def part_at(time: float, place: int) -> float:
        def late(part: float) -> float:
            return part / rate(request, gpus[place].type, part, layers) - time

        return room[place] if late(room[place]) <= 0 else brentq(late, 0.0, room[place], xtol=1e-14)

    def short(time: float) -> float:
        return sum(part_at(time, place) for place in range(n)) - model.batch_size

    slowest = max(most / rate(request, gpu.type, most, layers) for most, gpu in zip(room, gpus, strict=True))
    time = slowest if short(slowest) <= 0 else brentq(short, 0.0, slowest, xtol=1e-15, rtol=1e-14)
    return request.communication_efficiency * model.batch_size / time


def rate(request: PlacementRequest, name: str, part: float, layers: int) -> float:
    """The linear rule, or a table within its rows: times are linear in the layers and in the batch."""
    if isinstance(request.throughput, TableThroughput):
        rows = [row for row in request.throughput.rows if row.gpu_type == name]
        counts = sorted({row.layers for row in rows})
        batches = sorted({row.batch for row in rows})
        times = {(row.batch, row.layers): row.batch / row.throughput for row in rows}
        here = [np.interp(layers, counts, [times[batch, count] for count in counts]) for batch in batches]
        return part / float(np.interp(part, batches, here))
    assert isinstance(request.throughput, LinearThroughput)
    found = request.throughput.coefficients[name]
    fixed = found.sequence * request.model.sequence_length + found.layers * layers + found.constant
    return max(1.0, fixed + found.batch * part)
