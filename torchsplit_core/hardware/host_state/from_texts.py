"""A host's state from texts: `nvidia-smi -L`, `nvidia-smi mig -lgi`, and mig-parted's export. Tenants are not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchsplit_core.hardware.catalogue import gpu_type
from torchsplit_core.hardware.host_state.entries import forced_placement, refusals, state_gpu
from torchsplit_core.hardware.host_state.mig_parted import MigConfig, config_of, read_export
from torchsplit_core.hardware.host_state.products import tables
from torchsplit_core.hardware.host_state.smi_listings import (
    ListedGpu,
    ListedInstance,
    Placed,
    gpu_list,
    instance_list,
    placed_instances,
    type_name,
)
from torchsplit_core.hardware.host_state.validity import check_state, has_mig
from torchsplit_core.values import HostState, InputFault, StateGpu, quoted, system_reason

LARGEST_TEXT_BYTES = 64 * 2**10
"""Of a listing; one of 16 GPUs with seven instances each has 10 KiB."""


@dataclass(frozen=True, slots=True)
class HostText:
    """A text and what messages call it: its path, or the field of a form."""

    text: str
    where: str


def read_text_file(path: str) -> HostText:
    """A listing in a file. Raises InputFault where it cannot be read, is too large, or is not text."""
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(LARGEST_TEXT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = system_reason(error) if isinstance(error, OSError) else str(error)
        raise InputFault(path, f"cannot be read: {reason}", "Check the path.") from error
    return decode_text(data, path)


def decode_text(data: bytes, where: str) -> HostText:
    """A listing of bytes. Raises InputFault where it is too large, or is not text."""
    if len(data) > LARGEST_TEXT_BYTES:
        problem = f"has more than the {LARGEST_TEXT_BYTES >> 10} KiB of a listing"
        raise InputFault(where, problem, "Give the output of one command on one host.")
    try:
        return HostText(data.decode("utf-8-sig"), where)
    except UnicodeDecodeError as error:
        raise InputFault(where, f"is not text from byte {error.start} on", "Give a text in UTF-8.") from error


def state_of_texts(
    smi: HostText | None = None,
    lgi: HostText | None = None,
    mig_parted: HostText | None = None,
    *,
    types: Sequence[str] | None = None,
    host: str | None = None,
    skip_unknown: bool = False,
) -> HostState:
    """The state that the texts tell together; `tenants` are None.

    `smi`: nvidia-smi -L, the GPUs, their UUIDs and MIG devices. `lgi`: nvidia-smi mig -lgi, the starts. `mig_parted`:
    MIG mode and counts. `types` of all GPUs in order, instead of or over the product names of `smi`. Without `lgi`
    starts are taken where the profiles can stand in one way only. Ids are HOST/gpuN, without `host` gpuN.

    Raises InputFault for a text of something else, cards and profiles that the catalogue lacks, texts that contradict
    each other, and where GPUs, types or starts do not follow from them.
    """
    listed = _listed(smi, types)
    rows: list[ListedInstance] = []
    is_off = False
    if lgi is not None:
        with refusals():
            rows, is_off = instance_list(lgi.text, lgi.where)
    configs = None if mig_parted is None else read_export(mig_parted.text, mig_parted.where)
    indices = {gpu.number for gpu in listed}
    for row in rows:
        if lgi is not None and row.gpu not in indices:
            where = smi.where if smi else "--gpus"
            raise InputFault(lgi.where, f"has GPU {row.gpu}, which {where} has not", _SAME_HOST)
    for config in configs or ():
        beyond = set(config.devices or ()) - indices
        if beyond and mig_parted is not None:
            raise InputFault(mig_parted.where, f"has GPU {min(beyond)}, of {len(listed)} GPUs", _SAME_HOST)
    reader = _Reader(smi, lgi, mig_parted, configs, is_off=is_off, is_single=len(listed) == 1)
    gpus = []
    for number, gpu in enumerate(listed):
        kind = types[number] if types is not None else type_name(gpu.product, None, tables())
        if kind is None and skip_unknown:
            continue
        if kind is None:
            origin = smi.where if smi else ""
            problem = f"GPU {gpu.number} is {quoted(gpu.product)}, which is not in the catalogue"
            raise InputFault(
                origin, problem, "Leave such GPUs out with --skip-unknown, or give all types: --gpus."
            )
        gpu_id = f"gpu{gpu.number}" if host is None else f"{host}/gpu{gpu.number}"
        gpus.append(
            reader.gpu(gpu, gpu_type(kind).name, gpu_id, [row for row in rows if row.gpu == gpu.number])
        )
    if not gpus:
        raise InputFault(smi.where if smi else "", "lists no GPU of the catalogue", "See Help for its types.")
    state = HostState(tuple(gpus))
    check_state(state, ", ".join(text.where for text in (smi, lgi, mig_parted) if text is not None))
    return state


_SAME_HOST = "Give texts of one host, taken one right after the other."
_STARTS = "Add --lgi FILE, the output of nvidia-smi mig -lgi run as root: it has the starts."


def _listed(smi: HostText | None, types: Sequence[str] | None) -> list[ListedGpu]:
    for kind in types or ():
        if gpu_type(kind).divided == "cores":
            raise InputFault(
                "--gpus", f"has {quoted(kind)}, the cores of a host", "Name the host's GPUs alone."
            )
    if smi is None:
        if types is None:
            problem = "the types of the GPUs are not given"
            raise InputFault(
                "", problem, "Add --smi FILE, the output of nvidia-smi -L, or --gpus 8xA100-80GB."
            )
        return [ListedGpu(index, "", "", []) for index in range(len(types))]
    with refusals():
        listed = gpu_list(smi.text, smi.where)
    if types is not None and len(types) != len(listed):
        raise InputFault(
            "--gpus",
            f"has {len(types)} GPUs, {smi.where} {len(listed)}",
            "Give a type for each GPU, in order.",
        )
    return listed


@dataclass(frozen=True, slots=True)
class _Reader:
    """What the texts say of each GPU."""

    smi: HostText | None
    lgi: HostText | None
    mig_parted: HostText | None
    configs: tuple[MigConfig, ...] | None
    is_off: bool
    is_single: bool

    def gpu(self, gpu: ListedGpu, kind: str, gpu_id: str, rows: Sequence[ListedInstance]) -> StateGpu:
        config = None
        if self.configs is not None and self.mig_parted is not None:
            config = config_of(self.configs, gpu.number, kind, self.mig_parted.where)
        mode: bool | None = None
        if config is not None:
            mode = config.enabled if has_mig(gpu_type(kind)) else None
        elif gpu.devices or rows:
            mode = True
        elif has_mig(gpu_type(kind)) and self.lgi is not None and (self.is_off or self.is_single):
            # Without rows it says of the only GPU, or of all, whether MIG is on.
            mode = not self.is_off
        placed = self._placed(gpu, kind, rows, config)
        # The listings show instances, and no processes: where there are none, nothing is known to be in the way.
        return state_gpu(gpu_id, gpu.uuid or None, kind, mode, placed, None if placed else ())

    def _placed(
        self, gpu: ListedGpu, kind: str, rows: Sequence[ListedInstance], config: MigConfig | None
    ) -> list[Placed]:
        """The instances of a GPU."""
        if self.lgi is not None:
            where = f"{self.lgi.where}: GPU {gpu.number}"
            with refusals():
                placed = placed_instances(rows, gpu.devices, kind, tables(), where)
            # Both with the driver's names, which may differ from the catalogue's.
            self._compare([row.profile for row in rows], config, where)
            return placed
        profiles: list[tuple[str, str | None]] = [(item.profile, item.uuid) for item in gpu.devices]
        if self.smi is not None:
            where = f"{self.smi.where}: GPU {gpu.number}"
            if divided := next((name for name, _ in profiles if "c." in name), None):
                raise InputFault(where, f"has {divided}, a part of an instance that is not listed", _STARTS)
            self._compare([name for name, _ in profiles], config, where)
        elif config is not None and self.mig_parted is not None:
            where = f"{self.mig_parted.where}: GPU {gpu.number}"
            profiles = [(name, None) for name in config.profiles]
        else:
            return []
        return forced_placement(kind, profiles, where, _STARTS)

    def _compare(self, names: Sequence[str], config: MigConfig | None, where: str) -> None:
        """Raises InputFault where mig-parted counts other instances."""
        if config is not None and self.mig_parted is not None and Counter(names) != Counter(config.profiles):
            listed = ", ".join(names) or "no instance"
            counted = ", ".join(config.profiles) or "none"
            raise InputFault(where, f"has {listed}, {self.mig_parted.where} {counted}", _SAME_HOST)
