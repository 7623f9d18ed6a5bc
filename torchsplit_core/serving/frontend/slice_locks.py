"""Locks the cores and GPUs of served slices against the user's other processes on this host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from torchsplit_core.files.user_locks import user_lock
from torchsplit_core.serving.plan import BoundSlice
from torchsplit_core.values import InputFault


@contextmanager
def lock_devices(slices: Iterable[BoundSlice]) -> Iterator[None]:
    """Lock the devices of the slices. Raises InputFault if another process holds one."""
    with ExitStack() as locks:
        for bound_slice in slices:
            for name, description in _lock_names(bound_slice):
                _lock(locks, name, bound_slice, description)
        yield


def _lock_names(bound_slice: BoundSlice) -> Iterator[tuple[str, str]]:
    """Name and description of each device of a slice."""
    for core in bound_slice.cores:
        yield f"core-{core}", f"core {core} of this host"
    if bound_slice.device.uuid:
        yield bound_slice.device.uuid, bound_slice.device.uuid


def _lock(locks: ExitStack, name: str, bound_slice: BoundSlice, description: str) -> None:
    def taken(process: str) -> InputFault:
        return InputFault(
            f"slice {bound_slice.id}",
            f"is taken: {process} serves on {description}",
            "Stop that process, or serve where the slice is free; --stand-in cpu shares cores with others.",
        )

    user_lock(name, locks, taken)
