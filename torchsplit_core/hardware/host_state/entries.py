"""From what was read of a GPU to its entry of a host state; shared by all readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torchsplit_core.hardware.catalogue import gpu_type
from torchsplit_core.hardware.host_state.smi_listings import ListingFault, Placed, Processes, gpu_entry
from torchsplit_core.hardware.layouts import placements_of
from torchsplit_core.values import (
    WHOLE_GPU,
    ForeignTenant,
    InputFault,
    StateGpu,
    StateInstance,
    quoted,
    slice_name,
    suggestion,
)


@contextmanager
def refusals() -> Iterator[None]:
    """Inside the block, a ListingFault of the listings' reader is an InputFault."""
    try:
        yield
    except ListingFault as fault:
        raise InputFault(*fault.args) from None


def state_gpu(
    gpu_id: str,
    uuid: str | None,
    kind: str,
    mode: bool | None,
    placed: Sequence[Placed],
    processes: Processes,
) -> StateGpu:
    """The entry of a GPU."""
    entry = gpu_entry(gpu_id, uuid, kind, mode, placed, processes)
    instances = tuple(
        StateInstance(
            profile=item["profile"] or WHOLE_GPU,
            start=item["start"],
            uuid=item.get("uuid"),
            tenants=None
            if item["tenants"] is None
            else tuple(ForeignTenant(**who) for who in item["tenants"]),
        )
        for item in entry["instances"]
    )
    return StateGpu(gpu_id, kind, uuid, mode, instances)


def forced_placement(
    kind: str, profiles: Sequence[tuple[str, str | None]], where: str, remedy: str
) -> list[Placed]:
    """The instances of (profile, UUID) at the only starts that they can have together.

    Equal profiles have no UUID: which stands where is not known. Raises InputFault for unknown profiles, for those that
    do not fit together, and, with `remedy`, where they fit in several ways.
    """
    gpu, names = gpu_type(kind), [name for name, _ in profiles]
    known = [profile.name for profile in gpu.profiles]
    for name in names:
        if name not in known:
            problem = f"{kind} has no profile {quoted(name)}"
            raise InputFault(where, problem, suggestion(name, known, "profiles"))
    listed = ", ".join(f"{count} {name}" for name, count in Counter(names).items())
    layouts = placements_of(gpu, names)
    if not layouts:
        raise InputFault(
            where,
            f"{listed} do not fit on one {kind} together",
            "Check that this is the listing of that card.",
        )
    if len(layouts) > 1:
        ways = " or ".join(
            " ".join(slice_name(item.profile, item.start) for item in layout.placed) for layout in layouts
        )
        raise InputFault(where, f"{listed} can stand in several ways ({ways}, …)", remedy)
    uuids = {name: uuid for name, uuid in profiles if names.count(name) == 1}
    return [Placed(None, item.profile, item.start, uuids.get(item.profile)) for item in layouts[0].placed]
