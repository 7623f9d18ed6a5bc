"""Reads what `nvidia-mig-parted export` prints: MIG mode and counts of profiles, by devices and PCI ids; no starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torchsplit_core.hardware.catalogue import gpu_type
from torchsplit_core.hardware.host_state.products import tables
from torchsplit_core.values import InputFault, quoted

_REMEDY = "Give the output of nvidia-mig-parted export, as YAML or JSON."
MOST_INSTANCES = 64
"""Of one profile on a GPU; no card has more than seven."""
_KEYS = {"devices", "mig-enabled", "mig-devices", "device-filter"}


@dataclass(frozen=True, slots=True)
class MigConfig:
    """An entry. `devices` None: all, among those with the PCI ids of `filters` where there are any.

    `profiles` with repetitions, in the order of the entry.
    """

    devices: tuple[int, ...] | None
    filters: tuple[str, ...]
    enabled: bool
    profiles: tuple[str, ...]

    def covers(self, index: int, kind: str) -> bool:
        """Whether it is of this GPU."""
        if self.devices is not None and index not in self.devices:
            return False
        ids = {number.lower() for number in gpu_type(kind).pci_device_ids}
        # The catalogue has no ids of cards without MIG: theirs are those that it does not know.
        return not self.filters or any(
            number in ids if ids else number not in tables()["pci"] for number in self.filters
        )


def read_export(text: str, where: str) -> tuple[MigConfig, ...]:
    """The entries of an export. Raises InputFault for another text, and for a file of several configurations."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses aliases, by which a short text becomes a huge value, and a key that is given twice."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.composer.ComposerError(problem="it has an alias")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names = [str(key.value) for key, _ in node.value]
            if len(set(names)) < len(names):
                repeated = max(names, key=names.count)
                raise yaml.constructor.ConstructorError(problem=f"the key {quoted(repeated)} is given twice")
            return super().construct_mapping(node, deep)

    try:
        data = yaml.load(text, Loader=Loader)
    except RecursionError as error:
        raise InputFault(where, "is nested deeper than an export", _REMEDY) from error
    except (yaml.YAMLError, ValueError) as error:
        # A parser's message has the text around the fault in several lines.
        first = str(error).split("\n", 1)[0]
        raise InputFault(where, f"cannot be read as YAML: {first}", _REMEDY) from error
    configs = data.get("mig-configs") if isinstance(data, dict) else None
    if not isinstance(configs, dict) or data.get("version") != "v1":
        raise InputFault(where, "is not of version v1 with mig-configs", _REMEDY)
    if len(configs) != 1:
        names = ", ".join(map(str, list(configs)[:6]))
        problem = f"has {len(configs)} configurations ({names})" if configs else "has no configuration"
        raise InputFault(where, f"{problem}, and a host is in one", _REMEDY)
    ((label, entries),) = configs.items()
    if not isinstance(entries, list) or not entries:
        raise InputFault(f"{where}: {label}", f"is {quoted(entries)}, not a list of entries", _REMEDY)
    return tuple(
        _config(entry, f"{where}: {label}: entry {number}") for number, entry in enumerate(entries, 1)
    )


def config_of(configs: Iterable[MigConfig], index: int, kind: str, where: str) -> MigConfig:
    """The entry of a GPU. Raises InputFault where it has none or several."""
    matches = [config for config in configs if config.covers(index, kind)]
    if len(matches) != 1:
        problem = f"has {len(matches) or 'no'} {'entries' if matches else 'entry'} for GPU {index}, a {kind}"
        raise InputFault(where, problem, "Export it on the host that the other options are of.")
    return matches[0]


def _config(entry: Any, where: str) -> MigConfig:
    if not isinstance(entry, dict) or not {"devices", "mig-enabled"} <= set(entry) <= _KEYS:
        problem = f"is {quoted(entry)}, not devices, mig-enabled and mig-devices"
        raise InputFault(where, problem, _REMEDY)
    devices, filters, enabled = entry["devices"], entry.get("device-filter") or [], entry["mig-enabled"]
    counts = entry.get("mig-devices") or {}
    if devices != "all" and not (isinstance(devices, list) and all(map(_is_count, devices))):
        raise InputFault(where, f"devices is {quoted(devices)}, neither all nor a list of indices", _REMEDY)
    # YAML reads an unquoted 0x20B010DE as a number.
    listed = [f"0x{item:08x}" if _is_count(item) else item for item in _as_list(filters)]
    if not all(isinstance(item, str) for item in listed):
        raise InputFault(where, f"device-filter is {quoted(filters)}, not PCI ids", _REMEDY)
    if not isinstance(enabled, bool):
        raise InputFault(where, f"mig-enabled is {quoted(enabled)}, neither true nor false", _REMEDY)
    if not isinstance(counts, dict) or not all(
        isinstance(name, str) and _is_count(count) and count <= MOST_INSTANCES
        for name, count in counts.items()
    ):
        raise InputFault(where, f"mig-devices is {quoted(counts)}, not counts by profile", _REMEDY)
    if not enabled and any(counts.values()):
        raise InputFault(where, "has mig-devices where mig-enabled is false", _REMEDY)
    profiles = tuple(name for name, count in counts.items() for _ in range(count))
    chosen = None if devices == "all" else tuple(devices)
    return MigConfig(chosen, tuple(item.lower() for item in listed), enabled, profiles)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
