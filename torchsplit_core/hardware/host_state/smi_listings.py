"""Reads what nvidia-smi lists of GPUs and MIG instances: for TorchSplit, and as a program that a site runs without it.

`torchsplit capture --script` prints this file with the catalogue's tables filled in. Therefore it uses only Python 3.6
and its standard library: no dataclasses, no `list[str]`, no `capture_output`.

Run as a program on a host with MIG instances, as root, it writes that host's state to standard output, or with -o to a
file. Untested on hardware.
"""

import argparse
import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple
from xml.etree import ElementTree

# Filled in by `site_program`: {"pci": {id: type}, "products": {name: type}, "profiles": {type: {name: [id, slots]}}}.
TABLES: Dict[str, Dict[str, Any]] = {}

LIMIT_S = 60
"""Of one call of nvidia-smi; a host with eight GPUs and persistence mode off takes 20 s."""
LONGEST_QUOTE = 60

_GPU = re.compile(r"GPU\s+([0-9]{1,4})\s*:\s*(\S.*?)\s*\(\s*UUID\s*:\s*(GPU-[^\s()]+)\s*\)$")
_DEVICE = re.compile(r"MIG\s+([0-9]\S*)\s+Device\s+[0-9]+\s*:?\s*\(\s*UUID\s*:\s*(MIG-[^\s()]+)\s*\)$")
_ROW = re.compile(
    r"\|?\s*([0-9]{1,4})\s+MIG\s+([0-9]\S*)\s+([0-9]{1,4})\s+([0-9]{1,6})\s+([0-9]{1,3})\s*:\s*([0-9]{1,3})\s*\|?$"
)
_HEADING = re.compile(r"\|?\s*(GPU instances:|GPU\s+Name\b.*\bPlacement|ID\s+ID\s+Start\s*:\s*Size)\s*\|?$")
_FRAME = re.compile(r"[+|]?[-=]{3,}[+|]?$")
# The command itself, as people copy it with its output, and warnings about a card's infoROM.
_BESIDE = re.compile(r".*\bnvidia-smi .*|#.*|WARNING\b.*")
_NONE_IN_MODE, _NO_INSTANCES = "no mig-enabled devices found", "no gpu instances found"


class ListingFault(Exception):
    """(where, problem, remedy) of an input that cannot be read."""


class MigDevice(NamedTuple):
    """A MIG device of `nvidia-smi -L`; `profile` as there, "1c.3g.20gb" for a part of a GPU instance."""

    profile: str
    uuid: str


class ListedGpu(NamedTuple):
    """A GPU of `nvidia-smi -L` with its MIG devices in order."""

    number: int
    product: str
    uuid: str
    devices: List[MigDevice]


class ListedInstance(NamedTuple):
    """A row of `nvidia-smi mig -lgi`; start and size in memory slots."""

    gpu: int
    profile: str
    profile_id: int
    id: int
    start: int
    size: int


class Placed(NamedTuple):
    """A GPU instance by the catalogue's name; `id` is the driver's, None where it is not known."""

    id: Optional[int]
    profile: str
    start: int
    uuid: Optional[str]


Processes = Optional[Sequence[Tuple[int, Optional[int]]]]
"""(process id, id of its GPU instance or None if that is not known); None where the processes are not known."""


def gpu_list(text: str, where: str) -> List[ListedGpu]:
    """The GPUs of `nvidia-smi -L`. Raises ListingFault for another text, for none, and for an index given twice."""
    gpus: List[ListedGpu] = []
    for number, line in _lines(text):
        gpu, device = _GPU.match(line), _DEVICE.match(line)
        if gpu:
            gpus.append(ListedGpu(int(gpu.group(1)), gpu.group(2), gpu.group(3), []))
        elif device and gpus:
            gpus[-1].devices.append(MigDevice(device.group(1), device.group(2)))
        elif not _BESIDE.match(line):
            raise ListingFault(
                where, f"line {number} is {_quoted(line)}, which nvidia-smi -L does not print", _AGAIN_L
            )
    if not gpus:
        raise ListingFault(where, "lists no GPU" if text.strip() else "is empty", _AGAIN_L)
    _refuse_repeated([f"GPU {gpu.number}" for gpu in gpus], where, _AGAIN_L)
    return gpus


def instance_list(text: str, where: str) -> Tuple[List[ListedInstance], bool]:
    """The rows of `nvidia-smi mig -lgi`, and whether it says that MIG is off on every GPU.

    Raises ListingFault for another text, an empty one, a table that ends early, and an instance given twice.
    """
    rows: List[ListedInstance] = []
    is_off = is_empty = False
    framed, last = False, ""
    for number, line in _lines(text):
        row = _ROW.match(line)
        if row:
            gpu, profile, *numbers = row.groups()
            rows.append(ListedInstance(int(gpu), profile, *map(int, numbers)))
        elif _NONE_IN_MODE in line.lower():
            is_off = True
        elif line.lower().startswith(_NO_INSTANCES) and "permission" not in line.lower():
            is_empty = True
        elif _FRAME.match(line) or _HEADING.match(line):
            framed = True
        elif _BESIDE.match(line):
            continue
        else:
            problem = f"line {number} is {_quoted(line)}, which nvidia-smi mig -lgi does not print"
            raise ListingFault(where, problem, _AGAIN_LGI)
        last = line
    if framed and not last.startswith("+"):
        raise ListingFault(where, f"ends within its table, after {_quoted(last)}", _AGAIN_LGI)
    if not rows and not is_off and not is_empty:
        raise ListingFault(where, "has no row of a GPU instance" if text.strip() else "is empty", _AGAIN_LGI)
    _refuse_repeated([f"instance {row.id} of GPU {row.gpu}" for row in rows], where, _AGAIN_LGI)
    return rows, is_off and not rows


def placed_instances(
    rows: Sequence[ListedInstance],
    devices: Sequence[MigDevice],
    kind: str,
    tables: Dict[str, Any],
    where: str,
) -> List[Placed]:
    """The instances of one GPU by the catalogue's names, by start, with the UUIDs of their MIG devices where these are
    certain.

    The driver lists devices in the order of their instances. Where a profile has not one device for each instance,
    since one is divided or has no compute instance, nothing says which is which.

    Raises ListingFault for a profile that the type does not have, and for more devices than instances.
    """
    uuids: Dict[int, str] = {}
    for profile in sorted({device.profile for device in devices if _is_whole(device.profile)}):
        ids = sorted(row.id for row in rows if row.profile == profile)
        known = [device.uuid for device in devices if device.profile == profile]
        if len(known) > len(ids):
            problem = f"lists {len(ids)} instances {profile} where nvidia-smi -L has {len(known)}"
            raise ListingFault(where, problem, "Take both listings anew, one right after the other.")
        if len(known) == len(ids):
            uuids.update(zip(ids, known))
    return sorted(
        (
            Placed(row.id, profile_name(kind, row, tables, where), row.start, uuids.get(row.id))
            for row in rows
        ),
        key=lambda item: (item.start, item.profile),
    )


def profile_name(kind: str, row: ListedInstance, tables: Dict[str, Any], where: str) -> str:
    """The catalogue's name of a row's profile: by name, else by the driver's id, since drivers differ in names.

    Raises ListingFault where the type has neither, or another size.
    """
    profiles = tables["profiles"].get(kind, {})
    by_id = [name for name, (number, _) in profiles.items() if number == row.profile_id >= 0]
    name = row.profile if row.profile in profiles else by_id[0] if by_id else None
    if name is None:
        problem = f"{kind} has no profile {_quoted(row.profile)} with id {row.profile_id}"
        raise ListingFault(where, problem, "Check that this is the listing of that card.")
    if profiles[name][1] != row.size:
        problem = f"{name} takes {row.size} memory slots, on {kind} {profiles[name][1]}"
        raise ListingFault(where, problem, "Check that this is the listing of that card.")
    return str(name)


def type_name(product: str, pci_id: Optional[str], tables: Dict[str, Any]) -> Optional[str]:
    """The catalogue's type by PCI id ("0x20B010DE"), else by product name; None if it has neither."""
    name = tables["pci"].get((pci_id or "").lower()) or tables["products"].get(short_product(product))
    return None if name is None else str(name)


def short_product(product: str) -> str:
    """A product's name without its maker, which older drivers leave out."""
    return product[len("NVIDIA ") :] if product.startswith("NVIDIA ") else product


def gpu_entry(
    gpu_id: str,
    uuid: Optional[str],
    kind: str,
    mode: Optional[bool],
    placed: Sequence[Placed],
    processes: Processes,
) -> Dict[str, Any]:
    """A GPU of a host state. `mode`: whether MIG is on; None: not known, or no MIG.

    Without MIG the GPU is one instance if a process runs on it, or may run there, else none.
    """
    entry: Dict[str, Any] = {"id": gpu_id, "type": kind, "instances": []}
    if uuid is not None:
        entry["uuid"] = uuid
    if mode is not None:
        entry["mig_enabled"] = mode
    for item in placed:
        instance = {"profile": item.profile, "start": item.start, "tenants": _tenants(item.id, processes)}
        if item.uuid is not None:
            instance["uuid"] = item.uuid
        entry["instances"].append(instance)
    if not placed and not mode:
        tenants = None if processes is None else _foreign(pid for pid, _ in processes)
        if tenants != []:
            entry["instances"].append({"profile": None, "start": 0, "tenants": tenants})
    return entry


def unknown_card(where: str, index: int, product: str) -> ListingFault:
    """The fault of a card that the catalogue does not have."""
    problem = f"GPU {index} is {_quoted(product)}, which is not in the catalogue"
    return ListingFault(where, problem, "Leave such GPUs out with --skip-unknown.")


def _tenants(instance: Optional[int], processes: Processes) -> Optional[List[Dict[str, str]]]:
    """The tenants of an instance; None where a process runs of which the instance is not known."""
    if processes is None:
        return None
    names = _foreign(pid for pid, place in processes if place == instance)
    return names if names or all(place is not None for _, place in processes) else None


def _foreign(pids: Any) -> List[Dict[str, str]]:
    return [{"foreign": f"process {pid}"} for pid in sorted(set(pids))]


def _lines(text: str) -> Iterator[Tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line.strip()


def _is_whole(profile: str) -> bool:
    return not re.match("[0-9]+c[.]", profile)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 1] + "…")


def _refuse_repeated(names: Sequence[str], where: str, remedy: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ListingFault(where, f"lists {name} twice", remedy)


_AGAIN_L = "Give the whole output of nvidia-smi -L."
_AGAIN_LGI = "Give the whole output of nvidia-smi mig -lgi, run as root."


# The program


def capture(host: str, tables: Dict[str, Any], skip_unknown: bool) -> Dict[str, Any]:
    """This host's state, by nvidia-smi. Raises ListingFault where nvidia-smi does not say what it needs."""
    gpus = _query("gpu", "index,uuid,name,pci.device_id,mig.mode.current")
    rows: List[ListedInstance] = []
    devices: Dict[int, List[MigDevice]] = {}
    owners: Dict[str, str] = {}
    if any(mode == "Enabled" for *_, mode in gpus):
        rows = instance_list(_smi("mig", "-lgi"), "nvidia-smi mig -lgi")[0]
        for gpu in gpu_list(_smi("-L"), "nvidia-smi -L"):
            devices[gpu.number] = gpu.devices
            owners.update({device.uuid: gpu.uuid for device in gpu.devices})
    processes: Dict[str, List[str]] = {}
    for pid, uuid in _query("compute-apps", "pid,gpu_uuid"):
        # Drivers were seen to name the GPU; one that names the MIG device means the same.
        processes.setdefault(owners.get(uuid, uuid), []).append(pid)
    places = _process_places() if rows and processes else []
    entries = []
    for number, uuid, product, pci_id, mode in gpus:
        index, kind = int(number), type_name(product, pci_id, tables)
        if kind is None:
            if skip_unknown:
                continue
            raise unknown_card("nvidia-smi", index, product)
        of_gpu = [row for row in rows if row.gpu == index]
        placed = placed_instances(
            of_gpu, devices.get(index, []), kind, tables, f"nvidia-smi mig -lgi: GPU {index}"
        )
        # Without rights the driver hides the id of a process.
        pids = processes.get(uuid, [])
        located = [(int(pid), place) for gpu, pid, place in places if gpu == uuid]
        elsewhere = set(pids) - {str(pid) for pid, _ in located}
        running: Processes = None
        if all(pid.isdigit() for pid in pids):
            running = [*located, *((int(pid), None) for pid in elsewhere)]
        is_on = {"Enabled": True, "Disabled": False}.get(mode)
        entries.append(gpu_entry(f"{host}/gpu{index}", uuid, kind, is_on, placed, running))
    if not entries:
        raise ListingFault("nvidia-smi", "lists no GPU of the catalogue", "Run this on a host with GPUs.")
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"format": "torchsplit.host_state", "version": 1, "captured_at": now, "gpus": entries}


def _query(what: str, fields: str) -> List[List[str]]:
    """The rows of a query, as wide as its fields."""
    option = f"--query-{what}={fields}"
    rows = [line.split(", ") for _, line in _lines(_smi(option, "--format=csv,noheader"))]
    for row in rows:
        if len(row) != fields.count(",") + 1 or (what == "gpu" and not row[0].isdigit()):
            raise ListingFault(
                f"nvidia-smi {option}", f"answers {_quoted(', '.join(row))}", "Run nvidia-smi to see why."
            )
    return rows


def _process_places() -> List[Tuple[str, str, int]]:
    """(UUID of the GPU, process id, GPU instance) of the processes of which nvidia-smi -q -x gives all three."""
    try:
        gpus = ElementTree.fromstring(_smi("-q", "-x")).iter("gpu")
    except (ElementTree.ParseError, ListingFault):
        return []
    places = []
    for gpu in gpus:
        for process in gpu.iter("process_info"):
            pid, place = process.findtext("pid", ""), process.findtext("gpu_instance_id", "")
            if pid.isdigit() and place.isdigit() and process.findtext("type", "").startswith(("C", "M")):
                places.append((gpu.findtext("uuid", ""), pid, int(place)))
    return places


def _smi(*arguments: str) -> str:
    """The standard output of nvidia-smi. Raises ListingFault where it fails, but not where it lists no instance."""
    command = " ".join(("nvidia-smi", *arguments))
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            timeout=LIMIT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ListingFault(
            command, f"cannot be run: {error}", "Run this on a host with the NVIDIA driver."
        ) from error
    output = done.stdout.decode("utf-8", "replace")
    if done.returncode and not output.lower().startswith((_NONE_IN_MODE, _NO_INSTANCES)):
        words = (output + done.stderr.decode("utf-8", "replace")).strip().split("\n")[0]
        raise ListingFault(
            command, f"fails: {_quoted(words)}", "Run this as root, on a host with the NVIDIA driver."
        )
    return output


def main() -> int:
    """Write this host's state; 2 where it cannot be read."""
    parser = argparse.ArgumentParser(description="Writes the state of this host's GPUs for torchsplit.")
    parser.add_argument("-o", "--output", metavar="FILE", help="write here (default: standard output)")
    parser.add_argument(
        "--host", default=socket.gethostname(), metavar="NAME", help="default: this host's name"
    )
    parser.add_argument("--skip-unknown", action="store_true", help="leave out GPUs that the catalogue lacks")
    options = parser.parse_args()
    try:
        state = capture(options.host, TABLES, options.skip_unknown)
        text = json.dumps(state, indent=1) + "\n"
        if options.output:
            Path(options.output).write_text(text)
        else:
            sys.stdout.write(text)
    except ListingFault as fault:
        where, problem, remedy = fault.args
        print(f"capture: {where}: {problem}. {remedy}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"capture: {options.output}: cannot be written: {error.strerror}.", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
