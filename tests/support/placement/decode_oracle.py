"""A look at every pipeline of a roofline request, from the rules as docs/file-formats.md has them; nothing of the room
is used. Decode, sequences in flight, and layers cut among GPUs."""

from collections.abc import Iterator
from itertools import combinations, pairwise

from scipy.optimize import brentq

from torchsplit_core.values import PlacementRequest, RooflineThroughput

GIB = 1024**3

Segments = list[tuple[int, tuple[int, ...]]]
"""(layers, indices of the GPUs), in pipeline order."""


def pipelines(request: PlacementRequest) -> Iterator[Segments]:
    """Every way to put all layers on disjoint sets of GPUs, whatever it is worth."""

    def go_on(left: int, free: frozenset[int], so_far: Segments) -> Iterator[Segments]:
        if not left:
            yield so_far
            return
        for size in range(1, request.max_gpus_per_segment + 1):
            for chosen in combinations(sorted(free), size):
                for layers in range(1, left + 1):
                    yield from go_on(left - layers, free - set(chosen), [*so_far, (layers, chosen)])

    yield from go_on(request.model.layers, frozenset(range(len(request.gpus))), [])


def worth(request: PlacementRequest, segments: Segments) -> tuple[float, float]:
    """(throughput, seconds of a pass) of a pipeline; (0, 0) where a rule forbids it."""
    model = request.model
    decode = is_decode(request)
    held = (model.sequences_in_flight or len(segments) * model.batch_size) if decode else model.batch_size
    values = [segment_value(request, chosen, layers, held) for layers, chosen in segments]
    if min(values) <= 0:
        return 0.0, 0.0
    tokens = model.batch_size * (1 if decode else model.sequence_length)
    seconds = sum(tokens / value for value in values)
    for (_, first), (_, second) in pairwise(segments):
        slowest = min(request.bandwidth_gib_per_s[i][j] for i in first for j in second)
        if slowest <= 0:
            return 0.0, 0.0
        hidden = model.hidden_size * model.bytes_per_element / GIB
        seconds += tokens * hidden / slowest
        per_batch = model.batch_size * model.sequence_length
        values.append(slowest / hidden / (per_batch if request.units == "seed_literal" else 1))
    value = min(values)
    return (min(value, held / seconds) if decode else value), seconds


def best_of(request: PlacementRequest) -> float:
    """The throughput of the best pipeline; 0 where there is none."""
    return max((worth(request, pipeline)[0] for pipeline in pipelines(request)), default=0.0)


def best_sum_of(request: PlacementRequest, most: int) -> float:
    """The largest sum of throughputs of at most `most` pipelines on GPUs of their own."""
    best: dict[frozenset[int], float] = {}
    for pipeline in pipelines(request):
        used = frozenset(gpu for _, chosen in pipeline for gpu in chosen)
        best[used] = max(best.get(used, 0.0), worth(request, pipeline)[0])

    def rest(free: frozenset[int], left: int) -> float:
        if not left:
            return 0.0
        return max(
            (value + rest(free - used, left - 1) for used, value in best.items() if value and used <= free),
            default=0.0,
        )

    return rest(frozenset(range(len(request.gpus))), most)


def curve_of(request: PlacementRequest) -> list[tuple[float, float, int]]:
    """(throughput, seconds of a pass, GPUs) of the pipelines that no other beats, by rising throughput; of equal ones
    the fewest GPUs."""
    every = [(*worth(request, one), sum(len(chosen) for _, chosen in one)) for one in pipelines(request)]
    found = sorted({one for one in every if one[0] > 0}, key=lambda one: (-one[0], one[1]))
    kept: list[tuple[float, float, int]] = []
    for value, seconds, _ in found:
        if not kept or seconds < kept[-1][1] * (1 - 1e-9):
            equal = [g for t, s, g in found if t >= value * (1 - 1e-9) and s <= seconds * (1 + 1e-9)]
            kept.append((value, seconds, min(equal)))
    return kept[::-1]


def is_decode(request: PlacementRequest) -> bool:
    return isinstance(request.throughput, RooflineThroughput) and request.throughput.phase == "decode"


def memory_gib(request: PlacementRequest, layers: int, part: float, share: float, held: float) -> float:
    """GiB on a GPU with this part of the batch and this share of the layers' weights and keys."""
    model = request.model
    weights = layers * model.layer_weight_gib * share
    width = 1.15 * (3 * model.hidden_size + model.ffn_size) * model.bytes_per_element / GIB
    if not is_decode(request):
        return weights + part * model.sequence_length * width
    keys = 2 * (model.key_value_size or model.hidden_size) * model.sequence_length * model.bytes_per_element
    sequences = held * part / model.batch_size
    return weights + part * (model.prefill_chunk or 1) * width + sequences * layers * share * keys / GIB


def segment_value(request: PlacementRequest, chosen: tuple[int, ...], layers: int, held: float) -> float:
    """Tokens/s of these layers on these GPUs, `held` sequences in flight; 0 where a rule forbids it."""
    gpus = [request.gpus[i] for i in chosen]
    n, batch = len(chosen), float(request.model.batch_size)
    if request.same_type_segments and len({gpu.type for gpu in gpus}) > 1:
        return 0.0
    if request.split == "tensor":
        return cut_value(request, chosen, layers, held)
    if request.split == "equal" or n == 1:
        if any(memory_gib(request, layers, batch / n, 1.0, held) > gpu.memory_gib for gpu in gpus):
            return 0.0
        slowest = max(step_s(request, gpu.type, batch / n, layers, 1) for gpu in gpus)
        return tokens_of(request) * batch / slowest * (request.communication_efficiency if n > 1 else 1.0)
    bare = [memory_gib(request, layers, 0.0, 1.0, held) for _ in gpus]
    each = memory_gib(request, layers, 1.0, 1.0, held) - bare[0]
    room = [min((gpu.memory_gib - own) / each, batch) for gpu, own in zip(gpus, bare, strict=True)]
    if min(room) <= 0 or sum(room) < batch:
        return 0.0

    def part_at(time: float, place: int) -> float:
        def late(part: float) -> float:
            return step_s(request, gpus[place].type, part, layers, 1) - time

        if late(0.0) >= 0:
            return 0.0
        return room[place] if late(room[place]) <= 0 else brentq(late, 0.0, room[place], xtol=1e-14)

    def short(time: float) -> float:
        return sum(part_at(time, place) for place in range(n)) - batch

    slowest = max(step_s(request, gpu.type, most, layers, 1) for most, gpu in zip(room, gpus, strict=True))
    time = slowest if short(slowest) <= 0 else brentq(short, 0.0, slowest, xtol=1e-16, rtol=1e-14)
    # Every GPU has a part above 0: one that cannot finish any in this time waits for the shortest it can.
    idle = max(step_s(request, gpu.type, 0.0, layers, 1) for gpu in gpus)
    return request.communication_efficiency * tokens_of(request) * batch / max(time, idle)


def cut_value(request: PlacementRequest, chosen: tuple[int, ...], layers: int, held: float) -> float:
    """Tokens/s of layers cut among the GPUs: 1/n of weights and keys on each, two all-reduces a layer."""
    model, n = request.model, len(chosen)
    gpus = [request.gpus[i] for i in chosen]
    batch = float(model.batch_size)
    if any(memory_gib(request, layers, batch, 1 / n, held) > gpu.memory_gib for gpu in gpus):
        return 0.0
    seconds = max(step_s(request, gpu.type, batch, layers, n) for gpu in gpus)
    if n > 1:
        link = min(request.bandwidth_gib_per_s[i][j] for i in chosen for j in chosen if i != j)
        if link <= 0:
            return 0.0
        state_gib = batch * tokens_of(request) * model.hidden_size * model.bytes_per_element / GIB
        seconds += layers * 2 * (2 * (n - 1) / n) * state_gib / link
    return batch * tokens_of(request) / seconds


def tokens_of(request: PlacementRequest) -> int:
    return 1 if is_decode(request) else request.model.sequence_length


def step_s(request: PlacementRequest, name: str, part: float, layers: int, n: int) -> float:
    """Seconds of a step of one GPU that has 1/n of its layers."""
    model, spec = request.model, request.throughput
    assert isinstance(spec, RooflineThroughput)
    peak, s, size = spec.gpus[name], model.sequence_length, model.bytes_per_element
    weight = model.layer_weight_gib * GIB
    active = weight if model.active_layer_weight_gib is None else model.active_layer_weight_gib * GIB
    tokens, seen = (1, float(s)) if is_decode(request) else (s, s / 2)
    flops = part * tokens * (2 * active / size + 4 * model.hidden_size * seen) / n
    keys = 2 * (model.key_value_size or model.hidden_size) * s * size
    moved = (weight + part * keys) / n + part * 2 * tokens * model.hidden_size * size
    return layers * max(flops / (peak.tflops * 1e12 * 0.62), moved / (peak.memory_gb_per_s * 1e9 * 0.52))
