"""Files made to cost: each is one message, and neither memory nor time of whoever reads it."""

import io
import json
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable

import pytest

from tests.support.paths import ROOT
from tests.support.seeds import repeated
from torchsplit_core.files import measure, parse_json, read_text
from torchsplit_core.files.json_text import MOST_KEYS
from torchsplit_core.values import InputFault
from torchsplit_core.workspace import archive as archives
from torchsplit_core.workspace import untrusted_files
from torchsplit_core.workspace.archive import import_workspace
from torchsplit_core.workspace.store import Store
from torchsplit_core.workspace.untrusted_files import read_contract

pytestmark = pytest.mark.slow

MIB = 2**20


def head(name: str, rest: str) -> str:
    return f'{{"format": "torchsplit.{name}", "version": 1, {rest}}}'


REQUEST = '"gpus": [{"type": "A100-80GB"}], "models": '
PROFILE = '"source": "a", "architecture_hash": "", "rows": '


HALF, SLASHES, WIDE = "\\ud83d", "\\\\", "\N{GRINNING FACE}"


def json_list(text: str, times: int) -> str:
    return "[" + f"{text}," * times + f"{text}]"


BOMBS: dict[str, Callable[[], str]] = {
    "empty objects": lambda: json_list("{}", 20_000_000),
    "empty models": lambda: head("plan_request", REQUEST + json_list("{}", 3_000_000)),
    "a missing field each": lambda: head("profile", PROFILE + json_list('{"stage": "a"}', 1_000_000)),
    "a wrong type each": lambda: head("profile", PROFILE + "[], " + '"nodes": ' + json_list("1", 3_000_000)),
    "an unknown key each": lambda: head("plan_request", REQUEST + json_list('{"q": 1}', 1_000_000)),
    "wrong numbers": lambda: head(
        "plan_request", REQUEST + '[], "link_gb_per_s": ' + json_list("1", 9_000_000)
    ),
    "a wrong matrix": lambda: head(
        "placement_request", '"bandwidth_gb_per_s": ' + json_list('""', 3_000_000)
    ),
    "keys": lambda: head("plan_request", ",".join(f'"k{number}": 0' for number in range(1_000_000))),
    "keys of a free part": lambda: head(
        "profile",
        PROFILE + '[], "environment": {' + ",".join(f'"k{number}": 0' for number in range(1_000_000)) + "}",
    ),
    "keys of a table": lambda: head(
        "placement_request",
        '"throughput": {"kind": "linear", "coefficients": {'
        + ",".join(f'"k{number}": {{}}' for number in range(9_000))
        + "}}",
    ),
    "deep": lambda: head("plan_request", '"gpus": ' + "[" * 5_000_000 + "]" * 5_000_000),
    "deep, part of it free": lambda: head(
        "profile", PROFILE + '[], "environment": {"a": ' + "[" * 300 + "]" * 300 + "}"
    ),
    "a long key": lambda: head("plan_request", f'"{"k" * 30_000_000}": 0'),
    "a long name": lambda: head("plan_request", REQUEST + f'[{{"name": "{"k" * 30_000_000}"}}]'),
    "escapes": lambda: head(
        "profile", PROFILE + f'[], "environment": {{"a": "{HALF + SLASHES * 9_000_000}"}}'
    ),
    "wide letters": lambda: head("profile", PROFILE + f'[], "notes": "{WIDE * 30_000_000}"'),
    "nodes of a graph": lambda: head("graph", '"nodes": ' + json_list("{}", 3_000_000)),
    "inputs of a node": lambda: head(
        "graph", '"nodes": [{"id": "a", "kind": "op", "inputs": ' + json_list("1", 5_000_000) + "}]"
    ),
}


READ = """
import resource, sys
from torchsplit_core.values import InputFault
from torchsplit_core.workspace.untrusted_files import read_contract
from torchsplit_core.files import read_file
for path in sys.argv[2:]:
    try:
        if sys.argv[1] == "upload":
            read_contract(open(path, "rb").read(), "the file")
        else:
            read_file(path)
    except InputFault as fault:
        print(ascii(str(fault)))
# ru_maxrss would begin with that of the process that started this one.
print(int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) // 1024)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


@repeated(("way", "most_mib"), [("upload", 1024), ("command", 4096)])
@repeated("part", range(3), kept=1)
def test_a_file_made_to_cost_is_one_message(way, most_mib, part, tmp_path):
    files = []
    for number, name in enumerate(list(BOMBS)[part::3]):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(BOMBS[name]())
    said = subprocess.run(
        [sys.executable, "-c", READ, way, *map(str, files)], cwd=ROOT, capture_output=True, text=True,
        timeout=250,
    )  # fmt: skip
    for file in files:
        file.unlink()
    assert said.returncode == 0, said.stderr[-2000:]
    *messages, own, child = said.stdout.splitlines()
    assert len(messages) == len(files)
    assert max(map(len, messages)) < 1500
    assert not [message for message in messages if "ended early" in message]
    assert int(own) + int(child) < most_mib


def test_the_measure_is_above_what_reading_takes():
    assert measure("{}").objects == 1
    text = json.dumps({"a": ["b", {"c": 1.5}], "d": "é"}, ensure_ascii=False)
    assert measure(text.encode()).objects == measure(text).objects == 2
    assert measure(text.encode()).values == measure(text).values
    for letters in ("a", "é", "\N{SNOWMAN}", WIDE, f"a{WIDE}"):
        # A few bytes of a text are its head.
        assert measure((letters * 9_000).encode()).text_bytes >= sys.getsizeof(letters * 9_000) - 100


def test_what_people_have_is_read(tmp_path):
    """Half a million numbers of a matrix, fifty thousand nodes of a graph: through a browser, by the child."""
    size = 700
    row = ", ".join(["9.5"] * size)
    sizes = ("layers", "hidden_size", "ffn_size", "layer_weight_gb", "sequence_length", "batch_size")
    model = f'"model": {json.dumps(dict.fromkeys(sizes, 8))}'
    gpus = ", ".join(f'{{"id": {number}, "type": "A", "memory_gb": 1}}' for number in range(size))
    rows = ", ".join([f"[{row}]"] * size)
    text = head(
        "placement_request",
        f'{model}, "gpus": [{gpus}], "throughput": {{"kind": "roofline", "phase": "decode"}}, '
        f'"bandwidth_gb_per_s": [{rows}]',
    )
    assert len(read_contract(text.encode(), "the file")[1].bandwidth_gib_per_s) == size
    nodes = ", ".join(f'{{"id": "n{number}", "kind": "op", "op": "aten.add"}}' for number in range(50_000))
    assert len(read_contract(head("graph", f'"nodes": [{nodes}]').encode(), "the file")[1].nodes) == 50_000


def test_a_large_file_is_read_in_a_child_first(monkeypatch):
    order = []
    monkeypatch.setattr(untrusted_files, "run_limited", lambda *a, **k: order.append("child"))
    monkeypatch.setattr(untrusted_files, "_read", lambda *a: order.append("here"))
    read_contract(b" " * (untrusted_files.IN_PROCESS_BYTES + 1), "the file")
    assert order == ["child", "here"]


def abort_like_rust(_arguments: object, _progress: object) -> None:
    """What Rust's allocator does when it gets no memory."""
    sys.stderr.write("memory allocation of 123456 bytes failed\n")
    sys.stderr.flush()
    os.abort()


def fill_memory(_arguments: object, _progress: object) -> None:
    bytearray(2**33)


def never_end(_arguments: object, _progress: object) -> None:
    while True:
        pass


@repeated(("target", "words"), [
    ("abort_like_rust", "needs more than 768 MiB of memory"),
    ("fill_memory", "needs more than 768 MiB of memory"),
    ("never_end", "takes longer"),
], kept=2)  # fmt: skip
def test_a_child_that_ends_early_is_one_message(target, words):
    limits = untrusted_files.Limits(wall_s=3.0 if target == "never_end" else 60.0, memory_bytes=2**30)
    with pytest.raises(InputFault, match=words):
        untrusted_files.run_on_file(
            f"tests.workspace.test_untrusted_files:{target}", b"{}", {}, subject="the file", limits=limits
        )


@pytest.mark.parametrize(
    "text",
    [
     '"\\ud800"', '"\\udc00"', '"\\ud800\\ud800"', '"\\udc00\\ud800"', '"\\\\\\ud800"', '"\\ud83d\\\\ude00"',
     '"\ud800"',
     "1" * 5000, "-" + "9" * 5000, "NaN", "-Infinity", "[" * 2000, "{", ""],
)  # fmt: skip
def test_json_that_no_value_of_ours_could_hold_is_refused(text):
    with pytest.raises(InputFault) as caught:
        parse_json(text, "the file")
    assert str(caught.value).startswith("the file")


@pytest.mark.parametrize(
    "text", ["\\ud83d\\ude00", "\\uD83D\\uDE00", "\\\\ud800", "\\u00e9\\n", "é\N{GRINNING FACE}"]
)
def test_whole_characters_pass_however_they_are_written(text):
    assert parse_json(f'"{text}"', "the file") == json.loads(f'"{text}"')


def test_an_object_has_a_limited_number_of_keys():
    full = {str(number): 0 for number in range(MOST_KEYS)}
    assert parse_json(json.dumps(full), "the file") == full
    with pytest.raises(InputFault, match="10001 keys, more than 10000"):
        parse_json(json.dumps(full | {"more": 0}), "the file")


def test_a_part_that_may_hold_anything_holds_what_can_be_written_again():
    for part in ('{"a": [1e999]}', '{"a": ' + "[" * 40 + "]" * 40 + "}"):
        with pytest.raises(InputFault, match="environment"):
            read_text(head("profile", f'{PROFILE}[], "environment": {part}'))


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as made:
        for name, content in files.items():
            made.writestr(name, content)
    return buffer.getvalue()


def manifest(*results: tuple[str, str, str], **more: object) -> bytes:
    listed = [{"kind": kind, "name": name, "file": file} for kind, name, file in results]
    whole = {"format": "torchsplit.workspace", "version": 1, "name": "w", "results": listed, **more}
    return json.dumps(whole).encode()


ONE = manifest(("plan_request", "a", "a"))


def lying(data: bytes, says: int, name: str) -> bytes:
    """The archive with another size of an entry of one letter in its directory."""
    place = data.rindex(b"PK\x01\x02")
    while data[place + 46 : place + 47] != name.encode():
        place = data.rindex(b"PK\x01\x02", 0, place)
    return data[: place + 24] + struct.pack("<I", says) + data[place + 28 :]


def many_entries() -> bytes:
    """A directory of two million empty files, none of which is there."""
    entry = (
        struct.pack("<4s4B4HL2L5H2L", b"PK\x01\x02", 20, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0)
        + b"a"
    )
    directory = entry * 2_000_000
    return directory + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 65535, 65535, len(directory), 0, 0)


ARCHIVES: dict[str, Callable[[], bytes]] = {
    "20 million empty objects": lambda: zipped(
        {"manifest.json": ONE, "a": BOMBS["empty objects"]().encode()}
    ),
    "3 million empty models": lambda: zipped({"manifest.json": ONE, "a": BOMBS["empty models"]().encode()}),
    "a manifest of 200 MB": lambda: zipped({"manifest.json": b"[" + b"1," * 100_000_000 + b"1]"}),
    "a manifest of objects": lambda: zipped({"manifest.json": b"[" + b"{}," * 2_600_000 + b"{}]"}),
    "a gigabyte and more": lambda: lying(
        lying(lying(zipped(dict.fromkeys(("manifest.json", "a", "b", "c"), ONE)), 2**29, "a"), 2**29, "b"),
        1,
        "c",
    ),
    "a size too small": lambda: lying(zipped({"manifest.json": ONE, "a": bytes(300 * MIB)}), 100, "a"),
    "a size too large": lambda: lying(zipped({"manifest.json": ONE, "a": b"{}"}), 2**29, "a"),
    "two million entries": many_entries,
    "bzip2": lambda: zipped({"manifest.json": ONE, "a": bytes(100 * MIB)}, zipfile.ZIP_BZIP2),
    "lzma": lambda: zipped({"manifest.json": ONE, "a": bytes(100 * MIB)}, zipfile.ZIP_LZMA),
    "no utf-8": lambda: zipped({"manifest.json": ONE, "a": b"\xff"}),
    "ten thousand and one results": lambda: zipped(
        {"manifest.json": manifest(*[("upload", "a", "a")] * 10_001)}
    ),
}

IMPORT = """
import resource, sys
from pathlib import Path
from torchsplit_core.workspace.archive import import_workspace
from torchsplit_core.workspace.store import Store
from torchsplit_core.values import InputFault
store = Store(Path(sys.argv[1]))
for path in sys.argv[2:]:
    try:
        import_workspace(store, Path(path).read_bytes())
    except InputFault as fault:
        print(ascii(str(fault)))
    assert store.workspaces() == (), path
# ru_maxrss would begin with that of the process that started this one.
print(int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) // 1024)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


@repeated("part", range(3), kept=1)
def test_an_archive_made_to_cost_is_one_message_and_leaves_nothing(part, tmp_path):
    files = []
    for number, name in enumerate(list(ARCHIVES)[part::3]):
        files.append(tmp_path / f"{number}.zip")
        files[-1].write_bytes(ARCHIVES[name]())
    said = subprocess.run(
        [sys.executable, "-c", IMPORT, str(tmp_path / "home"), *map(str, files)],
        cwd=ROOT, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr[-2000:]
    *messages, own, child = said.stdout.splitlines()
    assert len(messages) == len(files)
    assert max(map(len, messages)) < 1500
    assert not [message for message in messages if "ended early" in message]
    assert int(own) + int(child) < 1024


def test_entries_that_share_their_bytes_are_refused(tmp_path):
    data = zipped({"manifest.json": ONE, "a": b"{}", "b": b"{}"}, zipfile.ZIP_STORED)
    start = data.index(b"PK\x01\x02")
    last = data.rindex(b"PK\x01\x02")
    second = data.index(b"PK\x01\x02", start + 4)
    # The directory says that the third entry begins where the second does.
    place = last + 42
    shared = data[:place] + data[second + 42 : second + 46] + data[place + 4 :]
    with pytest.raises(InputFault, match="exported"):
        import_workspace(Store(tmp_path), shared)
    assert Store(tmp_path).workspaces() == ()


def test_a_large_archive_is_checked_in_a_child_and_then_stored(tmp_path, monkeypatch):
    request = (ROOT / "examples" / "plan_request.json").read_bytes()
    data = zipped({
        "manifest.json": manifest(("plan_request", "a", "a"), ("upload", "b", "b")),
        "a": request,
        "b": os.urandom(2**17),
    })  # fmt: skip
    asked = []
    known = archives.run_on_file

    def watched(target, *rest, **more):
        asked.append(target)
        return known(target, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(archives, "run_on_file", watched)
    workspace = import_workspace(Store(tmp_path), data)
    assert asked == [archives.CHECK_TARGET]
    assert {(item.kind, item.name) for item in workspace.artifacts()} == {
        ("plan_request", "a"),
        ("upload", "b"),
    }
    assert workspace.get_bytes("plan_request", "a") == request
