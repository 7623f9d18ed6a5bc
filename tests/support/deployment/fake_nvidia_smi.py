"""A stand-in for nvidia-smi that models MIG: modes, placements, overlap, order.

State: a JSON file named by FAKE_SMI_STATE, {"gpus": {index: {"type", "mode", "gi", "ci", "apps",
"pending", "uuid", "in_use": calls that a destruction of each GPU instance is yet refused}}, "calls": [...],
"changes": [...], "deaths": changes after which the script that calls is killed}. It shares no code
with the product. Without a start it places an instance at the highest free start, which is how a
driver was seen to refuse 19,19,14,9 and to take 9,19,14,19.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

STATE = Path(os.environ["FAKE_SMI_STATE"])
CATALOGUE = json.loads(Path(os.environ["FAKE_SMI_CATALOGUE"]).read_text())
TYPES = {row["gpu"]: row for row in CATALOGUE["gpus"]}


def fail(text: str, code: int = 3) -> None:
    print(text)
    sys.exit(code)


def spans(gpu: dict[str, Any], profile: dict[str, Any], start: int) -> bool:
    """Whether the profile can be placed there now."""
    kind = TYPES[gpu["type"]]
    by_name = {row["profile"]: row for row in kind["profiles"]}
    placed = [(by_name[item["name"]], item["start"]) for item in gpu["gi"]]
    return (
        start in profile["placement_starts"]
        and all(start >= s + p["placement_size"] or s >= start + profile["placement_size"] for p, s in placed)
        and sum(p["compute_slices"] for p, _ in placed) + profile["compute_slices"] <= kind["compute_slices"]
        and sum(p is profile for p, _ in placed) < profile["max_instances"]
    )


def create(gpu: dict[str, Any], wanted: str) -> None:
    """Like the driver: what was created before the first refusal stays."""
    profiles = TYPES[gpu["type"]]["profiles"]
    for item in wanted.split(","):
        name, _, start = item.partition(":")
        found = [p for p in profiles if name in (p["profile"], str(p["profile_id"]))]
        if not found:
            fail(f"Unable to create a GPU instance using profile {name}: Invalid Argument")
        starts = [int(start)] if start else sorted(found[0]["placement_starts"], reverse=True)
        legal = [s for s in starts if spans(gpu, found[0], s)]
        if not legal:
            fail(f"Unable to create a GPU instance using profile {name}: Insufficient Resources")
        used = {row["id"] for row in gpu["gi"]}
        number = next(i for i in range(1, 99) if i not in used)
        gpu["gi"].append({"name": found[0]["profile"], "start": legal[0], "id": number})
        gpu["ci"].append({"gi": number, "name": found[0]["profile"]})


def change_instance(gpu: dict[str, Any], option: str, number: int) -> None:
    """Destroy one instance or the compute instance in it, or make that."""
    rows = [row for row in gpu["gi"] if row["id"] == number]
    computing = [row for row in gpu["ci"] if row["gi"] == number]
    if not rows or (option == "-dci" and not computing):
        fail(f"Unable to find GPU instance {number}: Not Found", 6)
    if option == "-cci":
        gpu["ci"].append({"gi": number, "name": rows[0]["name"]})
    elif option == "-dci":
        left = gpu.get("in_use", {}).get(str(number), 0)
        if left:
            gpu["in_use"][str(number)] = left - 1
            fail(f"Unable to destroy compute instance in GPU instance {number}: In use by another client")
        gpu["ci"].remove(computing[0])
    elif computing:
        fail("Unable to destroy GPU instance: In use by another client")
    else:
        gpu["gi"].remove(rows[0])


def mig(gpu: dict[str, Any], index: str, arguments: list[str]) -> None:
    by_name = {row["profile"]: row for row in TYPES[gpu["type"]]["profiles"]}
    if gpu["mode"] != "Enabled":
        fail("No MIG-enabled devices found.", 6)
    if arguments == ["-lgip"]:
        for row in by_name.values():
            name, number, most = row["profile"], row["profile_id"], row["max_instances"]
            print(f"|   {index}  MIG {name:<12} {number:>3}   0/{most}  9.5 |")
    elif arguments == ["-lgi"]:
        if not gpu["gi"]:
            fail("No GPU instances found: Not Found", 6)
        for row in sorted(gpu["gi"], key=lambda row: row["id"]):
            name, start, kind = row["name"], row["start"], by_name[row["name"]]
            at = f"{start}:{kind['placement_size']}"
            print(f"|   {index}  MIG {name:<12} {kind['profile_id']:>3} {row['id']:>8}  {at:>10}     |")
    elif arguments == ["-lci"]:
        if not gpu["ci"]:
            fail("No compute instances found: Not Found", 6)
        for row in gpu["ci"]:
            print(f"|   {index}  {row['gi']:>5}  MIG {row['name']:<12}  0  0    0:1   |")
    elif arguments == ["-dci"]:
        if not gpu["ci"]:
            fail("No compute instances found: Not Found", 6)
        gpu["ci"] = []
    elif arguments == ["-dgi"]:
        if gpu["ci"]:
            fail("Unable to destroy GPU instance: In use by another client")
        if not gpu["gi"]:
            fail("No GPU instances found: Not Found", 6)
        gpu["gi"] = []
    elif arguments[0] in ("-dci", "-dgi", "-cci") and arguments[1] == "-gi":
        change_instance(gpu, arguments[0], int(arguments[2]))
    elif arguments[0] == "-cgi" and arguments[2:] == ["-C"]:
        create(gpu, arguments[1])
    else:
        fail(f"fake: unknown mig arguments {arguments}", 2)


def main(arguments: list[str]) -> None:
    state = json.loads(STATE.read_text())
    state["calls"].append(arguments)
    is_change = bool({"-mig", "-dci", "-dgi", "-cgi", "-cci"} & set(arguments))
    if is_change:
        state["changes"].append(arguments)
    try:
        is_mig = arguments[0] == "mig"
        rest = arguments[1:] if is_mig else arguments
        named = {rest[1], *(index for index, gpu in state["gpus"].items() if gpu.get("uuid") == rest[1])}
        if rest[0] != "-i" or not named & set(state["gpus"]):
            fail("No devices were found", 6)
        (index,) = named & set(state["gpus"])
        gpu, rest = state["gpus"][index], rest[2:]
        if is_mig:
            mig(gpu, index, rest)
        elif rest == ["-mig", "1"]:
            if not gpu.get("pending"):
                gpu["mode"] = "Enabled"
        elif rest == ["--query-gpu=mig.mode.current", "--format=csv,noheader"]:
            print(gpu["mode"])
        elif rest == ["--query-gpu=name", "--format=csv,noheader"]:
            print(f"NVIDIA {gpu['type']}")
        elif rest == ["--query-compute-apps=pid,process_name", "--format=csv,noheader"]:
            print("\n".join(gpu["apps"]), end="")
        else:
            fail(f"fake: unknown arguments {arguments}", 2)
    finally:
        STATE.write_text(json.dumps(state))
        if is_change and len(state["changes"]) == state.get("deaths"):
            os.killpg(os.getpgid(0), signal.SIGKILL)


main(sys.argv[1:])
