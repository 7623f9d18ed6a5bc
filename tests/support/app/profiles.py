"""Hand-made profiles with intervals, percentiles, parts of memory, failures and several places."""

from torchsplit_core.values import (
    LatencyPercentiles,
    MemoryParts,
    Percentile,
    Profile,
    ProfileFailure,
    ProfileRow,
)

KIND = "A100-80GB"
BATCHES = (1, 2, 4, 8, 16)


def row(
    batch: int,
    time_ms: float,
    *,
    kind: str = KIND,
    size: str | None = "3g.40gb",
    basis: str = "measured",
    noise: float = 0.02,
    device: str | None = None,
) -> ProfileRow:
    """One process that takes `time_ms` a batch; the interval is `noise` to either side."""
    rate = 1000 * batch / time_ms
    exact = Percentile(time_ms, time_ms * (1 - noise), time_ms * (1 + noise))
    parts = MemoryParts(1.0, 0.25 * batch, 0.5, 0.25, "measured")
    return ProfileRow(
        stage="whole",
        gpu_type=kind,
        profile=size,
        batch_size=batch,
        processes=1,
        throughput_rps=rate,
        latency_ms=1.1 * time_ms,
        low_rps=rate / (1 + noise),
        high_rps=rate * (1 + noise),
        memory_gib=1.75 + 0.25 * batch,
        basis=basis,  # type: ignore[arg-type]
        device=device,
        percentiles_ms=LatencyPercentiles(
            40, exact, Percentile(1.1 * time_ms), Percentile(1.2 * time_ms, None, 99.0)
        ),
        memory_parts_gib=parts,
    )


def time_of(batch: int, share: float) -> float:
    """A batch curve with a floor: max(4, 2 + batch) over a share of the GPU."""
    return max(4.0, 2.0 + batch) / share


def measured(name: str, *, speed: float = 1.0, noise: float = 0.02, far_off: int | None = None) -> Profile:
    """Two slices and the processor measured, one slice estimated; batch 32 was out of memory on the smaller."""
    rows = [
        row(
            batch,
            time_of(batch, share) / speed * (3.0 if batch == far_off and share < 1 else 1.0),
            size=size,
            noise=noise,
        )
        for size, share in (("3g.40gb", 0.5), ("7g.80gb", 1.0))
        for batch in BATCHES
    ]
    rows += [
        row(batch, 100 * time_of(batch, 1.0) / speed, kind="CPU", size=None, device="cpu")
        for batch in (1, 2, 4)
    ]
    rows += [
        row(batch, time_of(batch, 0.2) / speed, size="1g.10gb", basis="estimated", noise=0.8)
        for batch in (1, 8)
    ]
    failure = ProfileFailure(
        "whole", KIND, "3g.40gb", 32, 1, "out_of_memory", "CUDA out of memory", "mig:MIG-1"
    )
    environment = {"torch": "2.13.0", "devices": {"cpu": {"device_name": "A processor", "threads": 2}}}
    return Profile(name, "abc", environment, tuple(rows), failures=(failure,))
