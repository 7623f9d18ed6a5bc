"""A hostile .pt2 is refused or shown harmlessly: nothing in it is executed, no path in it is opened.

Every payload is harmless: it makes an empty file. That each one is live, torch itself is the witness.
"""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch

import sample_models
from tests.support.tracing.pt2_files import altered, members_of, read_file, zipped
from torchsplit_core import workflow
from torchsplit_core.graph import TorchGraph, prepare, region_tree
from torchsplit_core.isolation import Limits
from torchsplit_core.planning.request.build import build_request
from torchsplit_core.profiling import estimate_rows, estimated_nodes
from torchsplit_core.tracing import hash_model_architecture, trace
from torchsplit_core.values import FleetEntry, InputFault

ROUTES = ("sample inputs", "weights", "constants", "sizes")
Change = Callable[[dict[str, Any]], Any]


class Trap:
    """Unpickled, it makes an empty file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    client = sample_models.load("diamond")
    free = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(client.get_model(), client.get_example_inputs(2), dynamic_shapes=free)
    path = tmp_path_factory.mktemp("saved") / "diamond.pt2"
    torch.export.save(program, path)
    return path


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
def live(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
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
def test_a_live_payload_never_runs_on_the_way_to_a_graph(
    route: str, live: dict[str, tuple[Path, Path]], saved: Path
) -> None:
    path, marker = live[route]
    graph = trace(str(path))
    assert len(graph.ops) == len(read_file(saved).ops)
    assert not marker.exists()


def test_live_payloads_never_run_on_the_way_to_a_plan(live: dict[str, tuple[Path, Path]]) -> None:
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


def test_no_path_named_inside_is_opened(saved: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.py"
    secret.write_text("the secret line\n")

    def change(program: dict[str, Any]) -> None:
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
def test_names_that_climb_out_of_the_archive_lead_nowhere(top: str, saved: Path, tmp_path: Path) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    members = {f"{top}{name.partition('/')[2]}": content for name, content in members_of(saved).items()}
    path = zipped(inside / "model.pt2", members | {"/etc/cron.d/x": b"x", "models/../../y": b"y"})
    try:
        assert len(read_file(path).ops) == len(read_file(saved).ops)
    except InputFault as fault:
        assert "models/NAME.json" in str(fault)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "a", inside, path]


def test_two_members_of_one_name_are_refused(saved: Path, tmp_path: Path) -> None:
    name = next(name for name in members_of(saved) if name.endswith("models/model.json"))
    path = zipped(tmp_path / "model.pt2", members_of(saved))
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr(name, b"{}")
    with pytest.raises(InputFault, match="one program"):
        read_file(path)


def test_archives_that_zipfile_stumbles_over_are_one_fault(saved: Path, tmp_path: Path) -> None:
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


def nodes_of(program: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = program["graph_module"]["graph"]["nodes"]
    return found


def sizes_of(program: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = program["graph_module"]["graph"]["tensor_values"]["x"]["sizes"]
    return found


def reads(program: dict[str, Any], place: int, name: str) -> None:
    nodes_of(program)[place]["inputs"][0]["arg"] = {"as_tensor": {"name": name}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: reads(p, 0, "linear_4"), "leads nowhere or back"),
        (lambda p: reads(p, 1, "relu"), "leads nowhere or back"),
        (lambda p: reads(p, 1, "nowhere"), "leads nowhere or back"),
        (lambda p: p["graph_module"]["graph"]["outputs"].append({"as_tensor": {"name": "no"}}), "nowhere"),
        (lambda p: nodes_of(p).append(nodes_of(p)[0]), "unique"),
        (lambda p: sizes_of(p).append({"as_int": 10**400}), "64 bits"),
        (lambda p: sizes_of(p).append({"as_int": -1}), "64 bits"),
        (lambda p: sizes_of(p).append({"as_int": True}), "64 bits"),
        (lambda p: sizes_of(p).append({"as_int": 2.5}), "64 bits"),
        (lambda p: sizes_of(p).extend([{"as_int": 2**40}] * 9), "whole number"),
        (lambda p: sizes_of(p).append({"as_expr": {"expr_str": "9**9**9**9**9**9", "hint": None}}), "short"),
        (lambda p: sizes_of(p).append({"as_expr": {"expr_str": "1+" * 900 + "1", "hint": None}}), "size"),
        (lambda p: sizes_of(p).append({"as_expr": {"expr_str": "9" * 3000, "hint": None}}), "whole number"),
        (lambda p: nodes_of(p)[0].update(name="n" * 201), "200 characters"),
        (lambda p: nodes_of(p)[0]["metadata"].update(nn_module_stack="a,[" + "[" * 10**6 + ",c"), "too long"),
        (lambda p: nodes_of(p)[0]["metadata"].update(stack_trace=["x"]), "schema"),
        (lambda p: nodes_of(p)[0].update(target="half \ud800"), "surrogate"),
    ],
)  # fmt: skip
def test_what_no_graph_can_have_is_refused(change: Change, said: str, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(InputFault, match=said) as caught:
        read_file(altered(saved, tmp_path, change))
    assert len(str(caught.value)) < 600


def called(program: dict[str, Any], *given: Any) -> None:
    """The first operation gets further arguments of this content."""
    for place, argument in enumerate(given):
        nodes_of(program)[0]["inputs"].append({"name": f"more{place}", "arg": argument, "kind": 1})


def deep(levels: int) -> Any:
    value: Any = {"as_int": 1}
    for _ in range(levels):
        value = {"as_string_to_argument": {"a": value}}
    return value


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"as_int": 2**64}, "64 bits"),
        ({"as_int": True}, "64 bits"),
        ({"as_int": 2.5}, "64 bits"),
        ({"as_float": "much"}, "schema"),
        ({"as_float": 10**400}, "64 bits"),
        ({"as_bool": 1}, "true or false"),
        ({"as_string": 3}, "a text is expected"),
        ({"as_string": "half \ud800"}, "surrogate"),
        ({"as_ints": 3}, "a list is expected"),
        ({"as_ints": [1, "x"]}, "64 bits"),
        ({"as_scalar_type": "x"}, "64 bits"),
        ({"as_device": {}}, "schema"),
        ({"as_complex": {"real": 1.0}}, "schema"),
        ({"as_int": 1, "as_bool": True}, "schema"),
        ({}, "schema"),
        (3, "schema"),
    ],
)
def test_an_argument_that_breaks_the_schema_is_refused(
    given: Any, said: str, saved: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputFault, match=said) as caught:
        read_file(altered(saved, tmp_path, lambda p: called(p, given)))
    assert len(str(caught.value)) < 600


def test_an_argument_that_stands_twice_is_refused(saved: Path, tmp_path: Path) -> None:
    def change(program: dict[str, Any]) -> None:
        nodes_of(program)[0]["inputs"].append({"name": "input", "arg": {"as_int": 1}, "kind": 1})

    with pytest.raises(InputFault, match="stands twice"):
        read_file(altered(saved, tmp_path, change))


def test_odd_arguments_are_bounded_and_count(saved: Path, tmp_path: Path) -> None:
    hashes = {hash_model_architecture(read_file(saved))}
    cases: list[Any] = [
        {"as_ints": list(range(100_000))}, {"as_ints": list(range(100_001))}, {"as_string": "x" * 10**6},
        {"as_float": "NaN"}, {"as_float": "-Infinity"}, {"as_none": True}, {"as_scalar_type": 99}, deep(3),
        deep(20), deep(21),
        {"as_of_a_later_schema": {"what": 1}}, {"as_of_a_later_schema": {"what": 2}}, {"as_layout": 7},
        {"as_memory_format": 2}, {"as_device": {"type": "cuda", "index": 1}},
        {"as_operator": "torch.ops.aten.add.Tensor"},
    ]  # fmt: skip
    for case in cases:
        graph = read_file(altered(saved, tmp_path, lambda program, case=case: called(program, case)))
        assert len(json.dumps(graph.ops[0].arguments)) < 2000
        looked_at(graph)
        hashes.add(hash_model_architecture(graph))
    assert len(hashes) == len(cases) + 1


@pytest.mark.parametrize("levels", [50, 900, 100_000])
def test_deep_nesting_is_refused(levels: int, saved: Path, tmp_path: Path) -> None:
    members = members_of(saved)
    name = next(name for name in members if name.endswith("models/model.json"))
    nested = b'{"a":' * levels + b"1" + b"}" * levels
    members[name] = b'{"schema_version": {"major": 8}, "graph_module": {"graph": ' + nested + b"}}"
    with pytest.raises(InputFault):
        read_file(zipped(tmp_path / "model.pt2", members))


def test_bodies_within_bodies_are_shown(saved: Path, tmp_path: Path) -> None:
    """A cond in a cond in a cond, a hundred deep."""

    def change(program: dict[str, Any]) -> None:
        graph = program["graph_module"]["graph"]
        inner: dict[str, Any] = {"inputs": [], "outputs": [], "nodes": [], "tensor_values": {}}
        for _ in range(100):
            argument = {"name": "f", "arg": {"as_graph": {"name": "body", "graph": inner}}, "kind": 1}
            node = {"name": "c", "target": "t", "inputs": [argument], "outputs": [], "metadata": {}}
            inner = {"inputs": [], "outputs": [], "nodes": [node], "tensor_values": {}}
        graph["nodes"] += inner["nodes"]

    looked_at(read_file(altered(saved, tmp_path, change)))


NASTY = '<img src=x onerror="alert(1)">\x1b[31m\x00\u202e</script>'


def test_names_with_markup_and_control_characters_arrive_as_plain_text(saved: Path, tmp_path: Path) -> None:
    def change(program: dict[str, Any]) -> None:
        node = nodes_of(program)[-1]
        node["name"] = NASTY
        node["outputs"][0]["as_tensor"]["name"] = NASTY
        node["target"] = NASTY
        node["metadata"] = {
            "nn_module_stack": f"k,{NASTY},t",
            "stack_trace": f'File "a", line 1, in f\n  {NASTY}',
        }
        program["graph_module"]["graph"]["outputs"] = [{"as_tensor": {"name": NASTY}}]

    node = read_file(altered(saved, tmp_path, change)).ops[-1]
    assert (node.id, node.target, node.code) == (NASTY, NASTY, NASTY)
    assert node.module == NASTY


@pytest.mark.parametrize("member", ["m\x1b[31m/models/x.json", "m/models/\n\x00\x1b.json"])
@pytest.mark.parametrize(
    "text", ["\x1b[31m", '{"\x1b[31m": 1}', '{"schema_version": {"major": 8}, "graph_module": 3}']
)
def test_no_message_carries_control_characters(member: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(InputFault) as caught:
        read_file(zipped(tmp_path / "model.pt2", {member: text.encode()}))
    assert str(caught.value).isprintable()


def looked_at(graph: TorchGraph) -> None:
    """What every page does with a graph."""
    hash_model_architecture(graph)
    region_tree(prepare(graph))
    estimated_nodes(graph)
    estimate_rows(graph, ("A100-80GB",), (1, 3))


def places_of(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in pairs for place in ((value, key), *places_of(inner))]


def test_three_hundred_mutations_are_a_graph_or_a_fault(saved: Path, tmp_path: Path) -> None:
    dice = random.Random(11)
    odd: tuple[Any, ...] = (
        None, True, -1, 0, 1.5, 10**400, 2**62, "", "x", "linear", "p_stem_bias", "s0", "y" * 5000, NASTY, "\ud800",
        [], {}, [[[]]], [None], {"as_int": 3}, {"as_tensor": {"name": "x"}}, {"as_none": True}, {"as_expr": {}},
    )  # fmt: skip
    graphs = 0
    for _ in range(300):

        def change(program: dict[str, Any]) -> None:
            for _ in range(dice.choice((1, 1, 2, 5))):
                container, key = dice.choice(places_of(program))
                how = dice.randrange(4)
                if how == 0:
                    del container[key]
                elif how == 1 and isinstance(container, list):
                    container.insert(dice.randrange(len(container)), container[key])
                elif how == 2:
                    other, another = dice.choice(places_of(program))
                    container[key] = json.loads(json.dumps(other[another]))
                else:
                    container[key] = dice.choice(odd)

        try:
            graph = read_file(altered(saved, tmp_path, change))
            graphs += 1
            looked_at(graph)
        except InputFault as fault:
            assert len(str(fault)) < 1000 and str(fault).isprintable()
    assert 30 < graphs < 270


def test_a_description_larger_than_memory_allows_is_refused_with_the_figure(tmp_path: Path) -> None:
    """A few kilobytes that unpack to a list of very many lists."""
    nested = b'{"schema_version": {"major": 8}, "x": [' + b"[]," * 20_000_000 + b"[]]}"
    path = zipped(tmp_path / "model.pt2", {"m/models/model.json": nested})
    with pytest.raises(InputFault, match=r"out of memory.*0\.9 GiB"):
        trace(str(path), limits=Limits(memory_bytes=10**9))
