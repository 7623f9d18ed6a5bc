"""A host's state by the driver and from texts: both tell the same, but texts know no tenants; bad texts are refused."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.hardware.listings import DATA, replay
from tests.support.hardware.smi_texts import (
    FRAME,
    HEADING,
    NO_DEVICES,
    NO_INSTANCES,
    instances_text,
    list_text,
)
from torchsplit_core.hardware import catalogue, gpu_type, legal_layouts
from torchsplit_core.hardware.host_state.from_driver import state_of_driver
from torchsplit_core.hardware.host_state.from_texts import (
    LARGEST_TEXT_BYTES,
    HostText,
    read_text_file,
    state_of_texts,
)
from torchsplit_core.hardware.layouts import placements_of
from torchsplit_core.hardware.replay import ReplayNvml
from torchsplit_core.values import WHOLE_GPU, ForeignTenant, HostState, InputFault, PlacedProfile

LISTINGS = sorted(path.name for path in DATA.glob("*.json"))
A100_LIST = (
    "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-e86c)\n"
    "  MIG 3g.20gb     Device  0: (UUID: MIG-c738)\n"
    "  MIG 3g.20gb     Device  1: (UUID: MIG-a28a)\n"
)
A100_ROWS = "|   0  MIG 3g.20gb   9   1   4:4 |\n|   0  MIG 3g.20gb   9   2   0:4 |\n"


def texts(
    smi: str | None = None, lgi: str | None = None, parted: str | None = None, **more: Any
) -> HostState:
    named = (("list.txt", smi), ("lgi.txt", lgi), ("parted.yaml", parted))
    return state_of_texts(*(None if text is None else HostText(text, name) for name, text in named), **more)


def placed(state: HostState, index: int = 0) -> list[tuple[str, int, str | None]]:
    return [(item.profile, item.start, item.uuid) for item in state.gpus[index].instances]


def export(*entries: str) -> str:
    return "version: v1\nmig-configs:\n  current:\n" + "".join(f"  - {entry}\n" for entry in entries)


def busy(*processes: tuple[int, int | None], **changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data["permission"] = changes.pop("permission", True)
        data["gpus"][0] |= {
            "processes": [{"pid": pid, "gpu_instance": place} for pid, place in processes], **changes,
        }  # fmt: skip

    return change


def by_driver(nvml: ReplayNvml, **more: Any) -> HostState:
    return state_of_driver(nvml, "node7", **more)[0]


# The driver


def test_the_driver_tells_instances_starts_and_who_uses_them(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json", busy((77, 3), (5, 3)))
    state, notes = state_of_driver(nvml, "node7")
    (gpu,) = state.gpus
    assert (gpu.id, gpu.type, gpu.uuid[:12], gpu.mig_enabled) == (
        "node7/gpu0",
        "A30-24GB",
        "GPU-1e44b340",
        True,
    )
    assert [(item.profile, item.start, (item.uuid or "")[:12], item.tenants) for item in gpu.instances] == [
        ("1g.6gb", 0, "MIG-41b9eab5", (ForeignTenant("process 5"), ForeignTenant("process 77"))),
        ("1g.6gb", 1, "MIG-55dcd9bd", ()),
        ("2g.12gb", 2, "MIG-1b8509c0", ()),
    ]
    assert notes == (nvml.origin,) and state.captured_at.endswith("Z")


def test_a_process_without_a_place_leaves_other_instances_unknown(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json", busy((77, 3), (5, None)))
    assert [item.tenants for item in by_driver(nvml).gpus[0].instances] == [
        (ForeignTenant("process 77"),), None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(("processes", "tenants"), [
    ((), []), (((9, None), (4, None)), [(ForeignTenant("process 4"), ForeignTenant("process 9"))]),
])  # fmt: skip
@pytest.mark.parametrize("name", ["t4_without_mig.json", "a30_three_slices.json"])
def test_a_gpu_without_mig_is_one_instance_where_processes_run(name, processes, tenants, tmp_path):
    has_mig = name.startswith("a30")
    nvml = replay(tmp_path, name, busy(*processes, mig="off" if has_mig else None, instances=[]))
    (gpu,) = by_driver(nvml).gpus
    assert [item.tenants for item in gpu.instances] == tenants
    assert all((item.profile, item.start) == (WHOLE_GPU, 0) for item in gpu.instances)
    assert gpu.mig_enabled is (False if has_mig else None)


def test_without_rights_starts_are_forced_or_refused_and_tenants_unknown(tmp_path):
    state = by_driver(replay(tmp_path, "a100_40gb_two_halves.json", busy((7, 1), permission=False)))
    assert placed(state) == [("3g.20gb", 0, None), ("3g.20gb", 4, None)], (
        "which UUID stands where is not known"
    )
    assert {item.tenants for item in state.gpus[0].instances} == {None}
    with pytest.raises(InputFault, match=r"2g\.12gb.* can stand in several ways .*Run this as root"):
        by_driver(replay(tmp_path, "a30_three_slices.json", busy(permission=False)))


def test_cards_that_are_lost_or_unknown_are_left_out_with_a_note_or_refused(tmp_path):
    def other(data: dict[str, Any]) -> None:
        spare = data["gpus"][0] | {"mig": None, "instances": [], "type": None, "pci_device_id": None}
        data["gpus"] += [
            spare | {"name": "NVIDIA T1000", "uuid": "GPU-1"},
            spare | {"uuid": "GPU-2", "lost": True},
        ]

    nvml = replay(tmp_path, "a30_three_slices.json", other)
    with pytest.raises(
        InputFault, match=r"GPU 1 is 'NVIDIA T1000', which is not in the catalogue.*--skip-unknown"
    ):
        by_driver(nvml)
    state, notes = state_of_driver(nvml, "node7", skip_unknown=True)
    assert [gpu.id for gpu in state.gpus] == ["node7/gpu0"]
    assert [note.split(" and is")[0] for note in notes[1:]] == [
        "GPU 1 (NVIDIA T1000) is not in the catalogue", "GPU 2 does not answer (GPU is lost)",
    ]  # fmt: skip
    with pytest.raises(InputFault, match="has no GPU that can be read"):
        by_driver(replay(tmp_path, "a30_three_slices.json", busy(lost=True)))


def test_a_profile_is_known_by_its_id_where_the_driver_names_it_otherwise(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json")
    other = [text(nvml).replace("2g.12gb", "2g.11gb") for text in (list_text, instances_text)]
    assert texts(*other) == texts(list_text(nvml), instances_text(nvml))


# Texts


@pytest.mark.parametrize("name", LISTINGS)
def test_the_texts_of_a_host_tell_what_its_driver_tells(name, tmp_path):
    nvml = replay(tmp_path, name)
    driver, read = by_driver(nvml), texts(list_text(nvml), instances_text(nvml), host="node7")
    assert [(gpu.id, gpu.type, gpu.uuid) for gpu in read.gpus] == [
        (gpu.id, gpu.type, gpu.uuid) for gpu in driver.gpus
    ]
    assert {item.tenants for gpu in read.gpus for item in gpu.instances} <= {None}
    for index, gpu in enumerate(driver.gpus):
        if gpu.mig_enabled and gpu.instances:
            assert placed(read, index) == placed(driver, index) and read.gpus[index].mig_enabled
        else:
            # Of several GPUs without instances only the driver tells which are in MIG mode, and that nothing runs.
            assert placed(read, index) == []
            assert read.gpus[index].mig_enabled in (gpu.mig_enabled, None)


@pytest.mark.parametrize("kind", [name for name, gpu in catalogue().items() if len(legal_layouts(gpu)) > 1])
def test_starts_without_lgi_are_taken_where_brute_force_finds_one_layout(kind):
    gpu = gpu_type(kind)
    by_profiles: dict[tuple[str, ...], list[tuple[PlacedProfile, ...]]] = {}
    for layout in legal_layouts(gpu):
        by_profiles.setdefault(layout.profiles, []).append(layout.placed)
    for names, layouts in by_profiles.items():
        counts = ", ".join(f"{name}: {names.count(name)}" for name in dict.fromkeys(names))
        text = export(f"{{devices: all, mig-enabled: true, mig-devices: {{{counts}}}}}")
        met = placements_of(gpu, names, most=1000)
        assert len(met) == len(set(met)) == len(layouts)
        if len(layouts) == 1:
            state = texts(parted=text, types=[kind])
            assert placed(state) == [(item.profile, item.start, None) for item in layouts[0]]
            assert state.gpus[0].mig_enabled is True
        else:
            with pytest.raises(InputFault, match=r"can stand in several ways .* Add --lgi FILE"):
                texts(parted=text, types=[kind])


def test_uuids_are_matched_in_order_of_instance_ids_and_left_out_where_they_are_not_certain():
    assert placed(texts(A100_LIST, A100_ROWS)) == [("3g.20gb", 0, "MIG-a28a"), ("3g.20gb", 4, "MIG-c738")]
    # One of the two has no compute instance: nothing says which.
    fewer = A100_LIST.rsplit("  MIG", 1)[0]
    assert placed(texts(fewer, A100_ROWS)) == [("3g.20gb", 0, None), ("3g.20gb", 4, None)]
    divided = A100_LIST.replace("MIG 3g.20gb     Device  0", "MIG 1c.3g.20gb  Device  0")
    assert placed(texts(divided, A100_ROWS)) == [("3g.20gb", 0, None), ("3g.20gb", 4, None)]
    assert placed(texts(fewer.replace("3g", "4g"))) == [("4g.20gb", 0, "MIG-c738")]


def test_framed_or_bare_rows_with_prompts_and_windows_ends_are_the_same():
    framed = "\n".join([*HEADING, *(f"{row}\n{FRAME}" for row in A100_ROWS.splitlines())])
    prompt = (
        f"root@node7:~# nvidia-smi mig -lgi\n{framed}\nWARNING: infoROM is corrupted at gpu 0000:07:00.0\n"
    )
    for lgi in (framed, prompt, framed.replace("\n", "\r\n"), A100_ROWS.replace("|", " ")):
        assert texts(A100_LIST, lgi) == texts(A100_LIST, A100_ROWS)


def test_what_the_texts_say_of_mig_mode():
    def modes(*given: Any, **more: Any) -> list[bool | None]:
        return [gpu.mig_enabled for gpu in texts(*given, **more).gpus]

    idle = A100_LIST.splitlines()[0]
    second = idle.replace("GPU 0", "GPU 1").replace("GPU-e86c", "GPU-77aa")
    two = f"{idle}\n{second}"
    assert modes(two) == [None, None] == modes(two, NO_INSTANCES), "one of them is on"
    assert modes(two, NO_DEVICES) == [False, False]
    assert modes(A100_LIST + second, A100_ROWS) == [True, None]
    assert modes(idle.replace("NVIDIA A100-SXM4-40GB", "Tesla T4"), NO_INSTANCES) == [None]
    on = texts(idle, NO_INSTANCES).gpus[0]
    assert (on.mig_enabled, on.instances) == (True, ()), (
        "nothing can run on a GPU in MIG mode without instances"
    )
    off = export("{devices: all, mig-enabled: false, mig-devices: {}}")
    assert modes(parted=off, types=["A30-24GB", "T4-16GB"]) == [False, None]
    assert texts(parted=off, types=["A30-24GB"]).gpus[0].instances == ()


def test_an_export_of_unlike_cards_goes_by_devices_and_pci_ids():
    text = export(
        '{device-filter: "0x20B010DE", devices: [0, 1], mig-enabled: true, mig-devices: {3g.20gb: 2}}',
        "{device-filter: [0x20B710DE], devices: all, mig-enabled: true, mig-devices: {4g.24gb: 1}}",
    )
    state = texts(parted=text, types=["A100-40GB", "A100-40GB", "A30-24GB"], host="a/b")
    assert [gpu.id for gpu in state.gpus] == ["a/b/gpu0", "a/b/gpu1", "a/b/gpu2"]
    assert [len(gpu.instances) for gpu in state.gpus] == [2, 2, 1]
    with pytest.raises(InputFault, match="has no entry for GPU 2, a T4-16GB"):
        texts(parted=text, types=["A100-40GB", "A100-40GB", "T4-16GB"])
    with_t4 = text + "  - {device-filter: 0x1EB810DE, devices: all, mig-enabled: false}\n"
    idle = texts(parted=with_t4, types=["A100-40GB", "A100-40GB", "T4-16GB"]).gpus[2]
    assert idle.instances == ()
    with pytest.raises(InputFault, match="has GPU 1, of 1 GPUs"):
        texts(parted=text, types=["A100-40GB"])


def test_an_export_beside_listings_gets_its_starts_from_them():
    text = export("{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 2}}")
    assert texts(A100_LIST, A100_ROWS, text) == texts(A100_LIST, A100_ROWS)
    assert texts(None, A100_ROWS, text, types=["A100-40GB"]).gpus[0].instances[1].start == 4
    renamed = (each.replace("3g.20gb", "3g.19gb") for each in (A100_LIST, A100_ROWS, text))
    assert texts(*renamed) == texts(A100_LIST, A100_ROWS), "a driver may have other names, the same in all"
    for other in ("{3g.20gb: 1}", "{3g.20gb: 1, 4g.20gb: 1}"):
        with pytest.raises(InputFault, match="Give texts of one host"):
            texts(A100_LIST, A100_ROWS, text.replace("{3g.20gb: 2}", other))


# Bad input

UNKNOWN_CARD = "GPU 0: NVIDIA Made Up 12GB (UUID: GPU-1)\n"
TABLE_OF_COMPUTE = "|   0      1       MIG 1g.5gb           0         0          0:1     |"
YAML_BOMB = "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}' if n else 'y'] * 9)}]\n" for n in range(12))


@pytest.mark.parametrize(("given", "message"), [
    ({"smi": ""}, "list.txt: is empty. Give the whole output of nvidia-smi -L."),
    ({"smi": "No devices found.\n"}, "list.txt: line 1 is 'No devices found.'"),
    ({"smi": "bash: line 1: nvidia-smi: command not found"}, "list.txt: line 1 is 'bash: line 1: nvidia-smi: command"),
    ({"smi": A100_ROWS}, "list.txt: line 1 is '|   0  MIG 3g"),
    ({"smi": A100_LIST[:110]}, "list.txt: line 3 is 'MIG 3g.20gb', which nvidia-smi -L does not print"),
    ({"smi": A100_LIST + A100_LIST}, "list.txt: lists GPU 0 twice"),
    ({"smi": A100_LIST.replace("MIG-a28a", "MIG-c738"), "lgi": A100_ROWS}, "has the UUID 'MIG-c738' a second time"),
    ({"smi": "  MIG 3g.20gb     Device  0: (UUID: MIG-c738)"}, "list.txt: line 1 is"),
    ({"smi": "\x1b[2J" * 99}, "list.txt: line 1 is"),
    ({"smi": UNKNOWN_CARD}, "list.txt: GPU 0 is 'NVIDIA Made Up 12GB', which is not in the catalogue"),
    ({"smi": UNKNOWN_CARD, "skip_unknown": True}, "list.txt: lists no GPU of the catalogue"),
    ({"smi": A100_LIST, "types": ["A30-24GB"] * 2}, "--gpus: has 2 GPUs, list.txt 1"),
    ({"smi": A100_LIST, "types": ["CPU-8c"]}, "--gpus: has 'CPU-8c', the cores of a host"),
    ({"smi": A100_LIST, "types": ["A100"]}, "unknown GPU type 'A100'"),
    ({"smi": A100_LIST.replace("3g.20gb", "3g.21gb")}, "A100-40GB has no profile '3g.21gb'. Did you mean 3g.20gb"),
    ({"smi": A100_LIST.replace("3g", "4g")}, "2 4g.20gb do not fit on one A100-40GB together"),
    ({"smi": A100_LIST.replace("3g.20gb", "1g.5gb ")}, "2 1g.5gb can stand in several ways"),
    ({"smi": A100_LIST.replace("3g", "1c.3g")}, "has 1c.3g.20gb, a part of an instance that is not listed"),
    ({"smi": A100_LIST, "lgi": ""}, "lgi.txt: is empty. Give the whole output of nvidia-smi mig -lgi, run as root."),
    ({"smi": A100_LIST, "lgi": TABLE_OF_COMPUTE}, "lgi.txt: line 1 is '|   0      1       MIG 1g.5gb"),
    ({"smi": A100_LIST, "lgi": "No GPU instances found: Insufficient Permissions"}, "lgi.txt: line 1 is 'No GPU inst"),
    ({"smi": A100_LIST, "lgi": "Insufficient Permissions"}, "lgi.txt: line 1 is 'Insufficient Permissions'"),
    ({"smi": A100_LIST, "lgi": "\n".join(HEADING)}, "lgi.txt: ends within its table"),
    ({"smi": A100_LIST, "lgi": "\n".join((*HEADING, A100_ROWS))}, "lgi.txt: ends within its table, after '|   0  MIG"),
    ({"smi": A100_LIST, "lgi": "\n".join((*HEADING, FRAME))}, "lgi.txt: has no row of a GPU instance"),
    ({"smi": A100_LIST, "lgi": A100_ROWS.splitlines()[0]}, "lists 1 instances 3g.20gb where nvidia-smi -L has 2"),
    ({"smi": A100_LIST, "lgi": NO_DEVICES}, "GPU 0: lists 0 instances 3g.20gb where nvidia-smi -L has 2"),
    ({"smi": A100_LIST, "lgi": A100_ROWS * 2}, "lgi.txt: lists instance 1 of GPU 0 twice"),
    ({"smi": A100_LIST, "lgi": A100_ROWS.replace("4:4", "0:4")}, "3g.20gb at 0 overlaps 3g.20gb at 0 in slot 0"),
    ({"smi": A100_LIST, "lgi": A100_ROWS.replace("4:4", "3:4")}, "3g.20gb cannot start at slot 3"),
    ({"smi": A100_LIST, "lgi": A100_ROWS.replace("4:4", "4:2")}, "3g.20gb takes 2 memory slots, on A100-40GB 4"),
    ({"smi": A100_LIST, "lgi": A100_ROWS + "|   0  MIG 1g.7gb   99   3   6:1 |"}, "has no profile '1g.7gb' with id 99"),
    ({"smi": A100_LIST, "lgi": A100_ROWS.replace("|   0", "|   3")}, "lgi.txt: has GPU 3, which list.txt has not"),
    ({"lgi": A100_ROWS}, "the types of the GPUs are not given. Add --smi FILE"),
    ({"lgi": A100_ROWS, "types": ["T4-16GB"]}, "T4-16GB has no profile '3g.20gb' with id 9"),
    ({"parted": "", "types": ["A30-24GB"]}, "parted.yaml: is not of version v1 with mig-configs"),
    ({"parted": "a: [", "types": ["A30-24GB"]}, "parted.yaml: cannot be read as YAML"),
    ({"parted": "{a: " * 5000, "types": ["A30-24GB"]}, "parted.yaml: is nested deeper than an export"),
    ({"parted": "!!python/object/apply:os.system [x]", "types": ["A30-24GB"]}, "parted.yaml: cannot be read as YAML"),
    ({"parted": export("{devices: all, mig-enabled: true, mig-devices: {1g.6gb: 1, 1g.6gb: 2}}"), "types": []},
     "parted.yaml: cannot be read as YAML: the key '1g.6gb' is given twice"),
    ({"parted": YAML_BOMB + "version: v1\nmig-configs: {a: *x11}\n", "types": ["A30-24GB"]},
     "parted.yaml: cannot be read as YAML: it has an alias"),
    ({"parted": "version: v1\nmig-configs: {a: [], b: []}", "types": ["A30-24GB"]}, "has 2 configurations (a, b)"),
    ({"parted": "version: v1\nmig-configs: {a: 7}", "types": ["A30-24GB"]}, "parted.yaml: a: is 7, not a list"),
    ({"parted": export("{devices: all}"), "types": ["A30-24GB"]}, "entry 1: is {'devices': 'all'}"),
    ({"parted": export("{devices: [-1], mig-enabled: true}"), "types": ["A30-24GB"]}, "devices is [-1]"),
    ({"parted": export("{devices: all, mig-enabled: 3}"), "types": ["A30-24GB"]}, "mig-enabled is 3"),
    ({"parted": export("{devices: all, mig-enabled: true, device-filter: [[1]]}"), "types": ["A30-24GB"]},
     "device-filter is [[1]]"),
    ({"parted": export("{devices: all, mig-enabled: true, mig-devices: {1g.6gb: 999}}"), "types": ["A30-24GB"]},
     "mig-devices is {'1g.6gb': 999}"),
    ({"parted": export("{devices: all, mig-enabled: false, mig-devices: {1g.6gb: 1}}"), "types": ["A30-24GB"]},
     "has mig-devices where mig-enabled is false"),
    ({"parted": export(*["{devices: all, mig-enabled: false}"] * 2), "types": ["A30-24GB"]},
     "has 2 entries for GPU 0, a A30-24GB"),
    ({"parted": export("{devices: all, mig-enabled: true, mig-devices: {1c.3g.20gb: 2}}"), "types": ["A100-40GB"]},
     "A100-40GB has no profile '1c.3g.20gb'"),
    ({"smi": A100_LIST, "lgi": A100_ROWS, "parted": export("{devices: all, mig-enabled: false}")},
     "Give texts of one host"),
])  # fmt: skip
def test_bad_texts_are_refused_in_one_message(given, message):
    with pytest.raises(InputFault) as caught:
        texts(**given)
    assert message in str(caught.value)
    assert str(caught.value).isprintable() and caught.value.remedy


def test_bad_files_are_refused(tmp_path):
    path = tmp_path / "list.txt"
    for data, problem in (
        (b"GPU 0: \xff\xfe", "is not text from byte 7 on"),
        (b" " * (LARGEST_TEXT_BYTES + 1), "has more than the 64 KiB of a listing"),
    ):
        path.write_bytes(data)
        with pytest.raises(InputFault, match=problem):
            read_text_file(str(path))
    for name in (str(tmp_path), str(tmp_path / "none"), "a\0b"):
        with pytest.raises(InputFault, match="cannot be read"):
            read_text_file(name)
    path.write_text("\ufeff" + A100_LIST, encoding="utf-8")
    assert read_text_file(str(path)).text == A100_LIST
