"""A hostile .pt2 is refused or shown harmlessly: nothing in it is executed, no path in it is opened.

Every payload is harmless: it makes an empty file. That each one is live, torch itself is the witness.
"""

import json
import pickle
import random
import subprocess
import sys
import warnings
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.tracing.pt2_files import altered, members_of, read_file, zipped
from torchsplit_core import workflow
from torchsplit_core.graph import prepare, region_tree
from torchsplit_core.planning.request.build import build_request
from torchsplit_core.tracing import trace
from torchsplit_core.values import FleetEntry, InputFault

ROUTES = ("sample inputs", "weights", "constants", "sizes")


class Trap:
    """Unpickled, it makes an empty file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def armed(saved: Path, path: Path, route: str, marker: Path) -> Path:
    """The saved program with a payload on one of the four routes by which torch executes a file."""
    members = members_of(saved)
    names = {name.partition("/")[2]: name for name in members}
    top = next(iter(members)).partition("/")[0]
    pickled = BytesIO()
    torch.save((Trap(marker),), pickled)
    if route == "sample inputs":
        members[names["data/sample_inputs/model.pt"]] = pickled.getvalue()
    elif route == "weights":
        name = names["data/weights/model_weights_config.json"]
        config = json.loads(members[name])
        entry = config["config"]["stem.bias"]
        entry["use_pickle"] = True
        members[name] = json.dumps(config).encode()
        members[f"{top}/data/weights/{entry['path_name']}"] = pickled.getvalue()
    elif route == "constants":
        entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
        config = {"config": {"trap": entry}}
        members[names["data/constants/model_constants_config.json"]] = json.dumps(config).encode()
        members[f"{top}/data/constants/opaque_obj_0"] = pickle.dumps(Trap(marker))
    else:
        program = json.loads(members[names["models/model.json"]])
        size = {"expr_str": f"__import__('pathlib').Path({str(marker)!r}).touch()", "hint": {"as_int": 2}}
        values = program["graph_module"]["graph"]["tensor_values"]
        values["x"]["sizes"][0] = {"as_expr": size}
        members[names["models/model.json"]] = json.dumps(program).encode()
    with zipfile.ZipFile(path, "w") as archive:  # stored, as torch reads it
        for name, content in members.items():
            archive.writestr(name, content)
    return path


LOAD = """
import sys, torch
for path in sys.argv[1:]:
    try:
        torch.export.load(path)
    except BaseException as error:
        print(path, repr(error)[:500])
"""


@pytest.fixture(scope="module")
def live(saved, tmp_path_factory) -> dict[str, tuple[Path, Path]]:
    """Route → an armed file and its marker, once torch.export.load in a process of its own made each marker."""
    folder = tmp_path_factory.mktemp("armed")
    files = {}
    for route in ROUTES:
        marker = folder / f"{route}.sprung"
        files[route] = armed(saved, folder / f"{route}.pt2", route, marker), marker
    command = [sys.executable, "-c", LOAD, *(str(path) for path, _ in files.values())]
    told = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    for route, (_, marker) in files.items():
        assert marker.exists(), f"{route} is a dead payload: {told.stdout} {told.stderr[-2000:]}"
        marker.unlink()
    return files


@pytest.mark.parametrize("route", ROUTES)
def test_a_live_payload_never_runs_on_the_way_to_a_graph(route, live, saved):
    path, marker = live[route]
    graph = trace(str(path))
    assert len(graph.ops) == len(read_file(saved).ops)
    assert not marker.exists()


def test_live_payloads_never_run_on_the_way_to_a_plan(live):
    for route in ("sample inputs", "weights", "constants"):
        path, _ = live[route]
        graph, profile = workflow.profile(str(path), gpu_types=("A100-80GB",))
        assert {row.basis for row in profile.rows} == {"estimated"}
        assert len(region_tree(prepare(graph)).regions) > 0
        request = build_request([profile], (FleetEntry(type="A100-80GB", count=1),), time_limit_s=10.0)
        assert workflow.plan(request).status == "optimal"
    # A size that is no arithmetic has no value, so nothing can be estimated: that is said, not executed.
    with pytest.raises(InputFault, match="size"):
        workflow.profile(str(live["sizes"][0]), gpu_types=("A100-80GB",))
    assert not any(marker.exists() for _, marker in live.values())


OPENED = """
import json, sys
sys.path[:0] = sys.argv[3:]
from pathlib import Path
from tests.support.tracing.pt2_files import read_file
from torchsplit_core.profiling import estimate_rows, estimated_nodes

def work(path):
    graph = read_file(Path(path))
    estimated_nodes(graph)
    estimate_rows(graph, ("A100-80GB",), (1,))
    return graph

work(sys.argv[1])  # whatever is imported late is imported now
touched = []
WATCHED = ("open", "os.", "subprocess", "socket", "exec", "import", "shutil", "ctypes", "pickle")
def note(event, arguments):
    if event.startswith(WATCHED):
        touched.append([event, str(arguments[0]) if arguments else ""])
sys.addaudithook(note)
graph = work(sys.argv[2])
print(json.dumps([touched, sorted({node.source for node in graph.ops}), sorted({node.code for node in graph.ops})]))
"""


def test_no_path_named_inside_is_opened(saved, tmp_path):
    secret = tmp_path / "secret.py"
    secret.write_text("the secret line\n")

    def change(program):
        for number, node in enumerate(program["graph_module"]["graph"]["nodes"]):
            path = ("/etc/passwd", str(secret), "../../secret.py")[number % 3]
            node["metadata"]["stack_trace"] = f'File "{path}", line 1, in forward\n    shown[{number % 3}](x)'
            node["metadata"]["from_node"] = path

    path = altered(saved, tmp_path, change)
    members = members_of(path)
    name = next(name for name in members if name.endswith("weights_config.json"))
    config = json.loads(members[name])
    for entry in config["config"].values():
        entry["path_name"] = "/etc/passwd"
    zipped(path, members | {name: json.dumps(config).encode()})
    here, good = str(Path(__file__).parent), zipped(tmp_path / "good.pt2", members_of(saved))
    done = subprocess.run(
        [sys.executable, "-c", OPENED, str(good), str(path), here, *sys.path],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    touched, sources, code = json.loads(done.stdout)
    assert touched == [["open", str(path)]]
    assert sources == ["passwd:1", "secret.py:1"]
    assert code == ["shown[0](x)", "shown[1](x)", "shown[2](x)"]


@pytest.mark.parametrize("top", ["../../x/", "../", "..\\..\\x/", "C:/"])
def test_names_that_climb_out_of_the_archive_lead_nowhere(top, saved, tmp_path):
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    members = {f"{top}{name.partition('/')[2]}": content for name, content in members_of(saved).items()}
    path = zipped(inside / "model.pt2", members | {"/etc/cron.d/x": b"x", "models/../../y": b"y"})
    try:
        assert len(read_file(path).ops) == len(read_file(saved).ops)
    except InputFault as fault:
        assert "models/NAME.json" in str(fault)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "a", inside, path]


def test_two_members_of_one_name_are_refused(saved, tmp_path):
    name = next(name for name in members_of(saved) if name.endswith("models/model.json"))
    path = zipped(tmp_path / "model.pt2", members_of(saved))
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr(name, b"{}")
    with pytest.raises(InputFault, match="holds 2 programs"):
        read_file(path)


def test_archives_that_zipfile_stumbles_over_are_one_fault(saved, tmp_path):
    """Encrypted members, unknown compressions, offsets to nowhere, damaged data: 300 broken bytes."""
    content = zipped(tmp_path / "good.pt2", members_of(saved)).read_bytes()
    name = next(name for name in members_of(saved) if name.endswith("models/model.json")).encode()
    dice = random.Random(7)
    places = [place for place in range(len(content)) if content.startswith((b"PK", name), place)]
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(dice.randint(1, 3)):
            place = dice.choice(places) + dice.randint(0, 60)
            damaged[min(place, len(damaged) - 1)] = dice.choice((0, 1, 8, 9, 12, 14, 99, 255))
        path = tmp_path / "model.pt2"
        path.write_bytes(damaged)
        try:
            read_file(path)
        except InputFault:
            refused += 1
    assert refused > 50
