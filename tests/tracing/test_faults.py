"""Every bad source is one InputFault that says where, which rule and how to mend it."""

import random
import struct
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import sample_models
from tests.support.tracing.here import traced_here
from tests.support.tracing.pt2_files import altered, read_file, zipped
from torchsplit_core.isolation import Limits
from torchsplit_core.model_source import example_arguments, load_client, open_model, parse_source
from torchsplit_core.tracing import pt2, trace
from torchsplit_core.tracing.export import export_program
from torchsplit_core.values import CLIENT_TEMPLATE, InputFault

CLIENT = """
import torch

class Client:
    batch_sizes = (1, 2)
    def __init__(self): self.model = Model()
    def get_model(self): return self.model
    def get_example_inputs(self, batch_size): return (torch.ones(batch_size, 4),)

class Model(torch.nn.Module):
    def forward(self, x):
        {body}
"""


def python_file(folder: Path, body: str) -> str:
    path = folder / "mine.py"
    path.write_text(CLIENT.replace("{body}", body))
    return str(path)


@pytest.fixture(autouse=True)
def forget_modules(monkeypatch) -> None:
    """A model's file leaves its folder and its module behind in the process that executes it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "model_file_mine", raising=False)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    client = sample_models.load("diamond")
    path = tmp_path_factory.mktemp("saved") / "diamond.pt2"
    torch.export.save(export_program(client.get_model(), client.get_example_inputs(2), {}), path)
    return path


def test_a_trusted_file_is_traced_with_its_own_lines(tmp_path):
    (tmp_path / "beside.py").write_text("FACTOR = 3\n")
    source = python_file(tmp_path, "from beside import FACTOR; return torch.relu(x) * FACTOR")
    graph = traced_here(f"{source}:Client", trust=True)
    assert [(node.op, node.source, node.shape) for node in graph.ops] == [
        ("relu", "mine.py:12", ("s0", 4)), ("mul", "mine.py:12", ("s0", 4))
    ]  # fmt: skip


def test_a_path_may_lead_through_a_folder_beside_the_file(tmp_path, monkeypatch):
    """The child may read the file's folder alone: a path that went through another would end there."""
    for name in ("here", "other"):
        (tmp_path / name).mkdir()
    source = Path(python_file(tmp_path / "other", "return x"))
    monkeypatch.chdir(tmp_path / "here")
    parsed = parse_source("../other/mine.py:Client", trust=True)
    assert parsed.text == f"{source}:Client"
    assert all(".." not in path for path in parsed.files)
    assert trace("../other/mine.py:Client", trust=True).nodes


def test_the_template_of_a_client_is_one(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CLIENT_TEMPLATE)
    client = load_client(f"{path}:Client", trust=True)
    args, kwargs = example_arguments(client, 2)
    assert len(open_model(client)(*args, **kwargs)) == 2


def test_the_last_cause_is_what_is_told():
    def fails():
        try:
            raise ValueError("no such vocabulary")
        except ValueError as error:
            raise RuntimeError("the model could not be built") from error

    client = sample_models.load("diamond")
    client.get_model = fails  # type: ignore[method-assign]
    with pytest.raises(
        InputFault, match=r"^get_model\(\): raised ValueError: no such vocabulary \(test_faults"
    ):
        open_model(client)


def test_a_file_is_executed_only_when_trusted(tmp_path):
    source = f"{python_file(tmp_path, 'return x')}:Client"
    with pytest.raises(InputFault, match="--trust"):
        trace(source)
    with pytest.raises(InputFault, match="--trust"):
        load_client(source)


@pytest.mark.parametrize(("source", "said"), [
    ("bert", r"^unknown model source 'bert'. Did you mean sample:bert\?$"),
    ("net.onnx", r"sample:NAME"),
    ("sample:brt", r"bert"),
    ("sample:bert@huge", r"small, large"),
    ("missing.pt2", r"^missing\.pt2: cannot be read: no such file\."),
    ("missing.py:Client", r"^missing\.py: cannot be read: no such file\."),
    ("~o\0ed.py:Net", "cannot be the name of a file"),
    ("~nobody-of-that-name/a.pt2", "'nobody-of-that-name', who is no user of this machine"),
    ("model.py", r"model\.py:NAME"),
    (".:Client", "sample:NAME"),
])  # fmt: skip
def test_a_source_of_no_known_form_names_the_forms(source, said):
    with pytest.raises(InputFault, match=said):
        trace(source, trust=True)


@pytest.mark.parametrize(("body", "said"), [
    ("return x.view(2, 2, 2)", r"^mine\.py:Client: input x: .*fixed.*at mine\.py:12.*x\.shape\[0\]"),
    ("return x @ torch.ones(5, 5)",
     r"^mine\.py:Client: forward .*: raised RuntimeError.*\(mine\.py:12\)\. Mend"),
    ("return x, object()", r"result\[1\]: is of type object, which torch\.export does not know"),
])  # fmt: skip
def test_a_model_that_does_not_export_says_why_and_where(body, said, tmp_path):
    with pytest.raises(InputFault, match=said) as caught:
        traced_here(f"{python_file(tmp_path, body)}:Client", trust=True)
    assert "Traceback" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_that_only_the_strict_export_follows_is_traced():
    class Sized(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            return torch.zeros(int(n.sum().item()), 3).sum() + x

    program = export_program(Sized(), (torch.ones(2, 3), torch.ones(2, dtype=torch.int64)), {})
    assert any("zeros" in str(node.target) for node in program.graph.nodes)


def test_keyword_inputs_are_passed_by_name():
    class Named(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, bias: torch.Tensor) -> torch.Tensor:
            return x + bias

    program = export_program(Named(), (torch.ones(2, 3),), {"bias": torch.ones(2, 3)})
    assert not isinstance(program.graph.find_nodes(op="placeholder")[1].meta["val"].shape[0], int)


@pytest.mark.repeated
def test_a_model_that_runs_for_ever_is_stopped(tmp_path):
    source = python_file(tmp_path, "while True: pass")
    with pytest.raises(InputFault, match=r"still running after 5 s"):
        trace(f"{source}:Client", trust=True, limits=Limits(wall_s=5))


@pytest.mark.parametrize("ask", ["bytearray(2**40)", "torch.empty(2**38)"])
def test_a_model_that_asks_for_all_memory_is_refused(ask, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CLIENT.replace("return self.model", f"return {ask}").replace("{body}", "return x"))
    with pytest.raises(InputFault, match=r"out of memory.*5\.0 GiB"):
        trace(f"{path}:Client", trust=True, limits=Limits(memory_bytes=5 * 2**30))


@pytest.mark.parametrize(("text", "name", "said"), [
    ("def broken(:\n    pass\n", "Client", r"^mine\.py:1: is not valid Python: "),
    ("import nowhere_to_be_found\n", "Client", r"ModuleNotFoundError.*mine\.py:1"),
    ("def other(): pass\n", "Client", r"^mine\.py: does not define 'Client'\. .*: other\."),
    ("Client = 3\n", "Client", r"^mine\.py:Client: gives a value of type int, not a client"),
    ("def Client(): return 3\n", "Client", r"type int.*get_example_inputs"),
    ("def Client(): return 1 / 0\n", "Client", r"ZeroDivisionError.*mine\.py:1"),
    ("import torch\nClient = torch.nn.Linear(2, 2)\n", "Client",
     r"Client is an nn\.Module, not a client\. Add"),
    ("import torch\nClient = torch.nn.Linear\n", "Client", r"Client is an nn\.Module, not a client\. Add"),
    ("class Client:\n    def __init__(self, width): pass\n", "Client",
     r"raised TypeError.*without arguments"),
    ("class Client:\n    def get_model(self): pass\n", "Client",
     r"without get_example_inputs\(.*\) and batch_"),
    (CLIENT.replace("(1, 2)", "(0, 2)").replace("{body}", "pass"), "Client",
     r"^mine\.py:Client\.batch_sizes: is \(0, 2\), not a sequence of whole numbers"),
])  # fmt: skip
def test_a_file_that_gives_no_client_says_what_it_gives(text, name, said, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(InputFault, match=said):
        load_client(f"{path}:{name}", trust=True)


@pytest.mark.parametrize(("given", "said"), [
    ({"get_model": lambda: 3}, r"^get_model\(\): returns a value of type int, not an nn\.Module"),
    ({"get_model": lambda: 1 / 0}, r"ZeroDivisionError"),
    ({"get_example_inputs": lambda batch: torch.ones(batch)}, r"type Tensor, not a tuple.*\(x,\)"),
    ({"get_example_inputs": lambda batch: 1 / 0}, r"ZeroDivisionError"),
])  # fmt: skip
def test_a_client_that_breaks_its_promise_is_named(given, said):
    client = sample_models.load("diamond")
    for name, value in given.items():
        setattr(client, name, value)
    with pytest.raises(InputFault, match=said):
        open_model(client)
        example_arguments(client, 2)


def test_a_trusted_pt2_is_a_client_of_any_batch_size(saved):
    with pytest.raises(InputFault, match="--trust"):
        load_client(str(saved))
    client = load_client(str(saved), trust=True)
    args, kwargs = example_arguments(client, 5)
    assert open_model(client)(*args, **kwargs).shape == (5, 16)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_files_that_are_no_pt2_are_refused(tmp_path):
    noise = random.Random(1).randbytes(10 * 2**20)
    for content, said in (
        (b"", "is empty"), (noise, "zip archive"), (b"PK\x03\x04 not really", "zip archive"),
    ):  # fmt: skip
        with pytest.raises(InputFault, match=f"^model.pt2: .*{said}.*torch.export.save"):
            trace(str(write(tmp_path / "model.pt2", content)))


@pytest.mark.parametrize(("members", "said"), [
    ({"readme.txt": b"hello"}, r"no member of it is models/NAME\.json"),
    ({"m/data.pkl": b"x", "m/version": b"3"}, r"holds no exported program"),
    ({"m/models/a.json": b"{}", "m/models/b.json": b"{}"}, r"holds 2 programs: a, b"),
    ({"m/models/model.json": b"\xff\x00"}, r"is not a JSON object"),
    ({"m/models/model.json": b"[" * 200_000}, r"is not a JSON object"),
    ({"m/models/model.json": b"[]"}, r"is not a JSON object"),
    ({"m/models/model.json": b"{}"}, r"export schema"),
    ({"m/models/model.json": b'{"schema_version": {"major": 99}}'}, r"schema_version: is 99, and version 8"),
    ({"m/models/model.json": b'{"schema_version": {"major": 8}, "graph_module": []}'}, r"export schema"),
])  # fmt: skip
def test_archives_without_a_program_are_refused(members, said, tmp_path):
    with pytest.raises(InputFault, match=said):
        read_file(zipped(tmp_path / "model.pt2", members))


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    # The limit as it stands takes a second a GiB to write against.
    assert pt2.MOST_JSON_BYTES <= 1.5 * 2**30
    monkeypatch.setattr(pt2, "MOST_JSON_BYTES", 2**26)
    path = tmp_path / "model.pt2"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("m/models/model.json", "w", force_zip64=True) as member,
    ):
        for _ in range(65):
            member.write(bytes(2**20))
    assert path.stat().st_size < 2**19
    with pytest.raises(InputFault, match=r"unpacks to .* above the largest"):
        read_file(path)


def test_a_lie_about_the_unpacked_size_does_not_help(tmp_path):
    path = zipped(tmp_path / "model.pt2", {"m/models/model.json": b" " * 5_000_000})
    content = path.read_bytes().replace(struct.pack("<I", 5_000_000), struct.pack("<I", 10))
    with pytest.raises(InputFault, match=r"model\.pt2"):
        read_file(write(path, content))


def test_a_reading_executes_nothing_that_a_file_carries(saved, tmp_path):
    """A size that would run code when evaluated is kept as text, and pickles are not opened."""
    trap = tmp_path / "sprung"

    def change(program):
        graph = program["graph_module"]["graph"]
        size = {"expr_str": f"__import__('pathlib').Path({str(trap)!r}).touch()", "hint": {"as_int": 2}}
        graph["tensor_values"]["x"]["sizes"][0] = {"as_expr": size}

    assert read_file(altered(saved, tmp_path, change)).nodes
    assert not trap.exists()


@pytest.mark.parametrize("change", [
    lambda graph: graph["nodes"][3]["inputs"][0]["arg"]["as_tensor"].update(name="nowhere"),
    lambda graph: graph["nodes"][3].pop("outputs"),
    lambda graph: graph["tensor_values"]["x"].update(sizes=7),
    lambda graph: graph["tensor_values"]["x"]["sizes"].append({"as_expr": {"expr_str": "(" * 3000}}),
    lambda graph: graph["tensor_values"]["x"]["sizes"].append({"as_expr": {"expr_str": "1+" * 3000 + "1"}}),
])  # fmt: skip
def test_a_damaged_program_is_one_fault(change, saved, tmp_path):
    with pytest.raises(InputFault):
        read_file(altered(saved, tmp_path, lambda program: change(program["graph_module"]["graph"])))


def test_sources_are_told_apart_without_touching_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("")
    assert parse_source("sample:bert@large").text == "sample:bert@large"
    assert parse_source("sample:bert").size == "small"
    assert parse_source("a.py:Net", trust=True).text == f"{tmp_path / 'a.py'}:Net"
    # From a folder beside it: what a confined child cannot walk through is no part of the path.
    (tmp_path / "beside").mkdir()
    monkeypatch.chdir(tmp_path / "beside")
    assert parse_source("../a.py:Net", trust=True).path == str(tmp_path / "a.py")
