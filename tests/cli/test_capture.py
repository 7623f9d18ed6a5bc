"""capture from outside: the driver, texts, the program for sites; files in, files out, one message for bad input."""

import io
from pathlib import Path

import pytest

from tests.support.hardware.listings import DATA, replay
from tests.support.hardware.smi_texts import instances_text, list_text
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file
from torchsplit_core.hardware.host_state.from_driver import state_of_driver
from torchsplit_core.hardware.host_state.products import site_program
from torchsplit_core.hardware.replay import REPLAY_VARIABLE, ReplayNvml
from torchsplit_core.values import HostState

LISTING = DATA / "a100_40gb_two_halves.json"


def state(path: Path) -> HostState:
    return read_file(path, expected="torchsplit.host_state")[1]


@pytest.fixture
def texts(tmp_path) -> tuple[str, str]:
    nvml = ReplayNvml(LISTING)
    paths = tmp_path / "list.txt", tmp_path / "lgi.txt"
    paths[0].write_text(list_text(nvml))
    paths[1].write_text(instances_text(nvml))
    return str(paths[0]), str(paths[1])


def test_this_host_by_its_driver(tmp_path, monkeypatch, stderr_of):
    def add_process(data):
        data["gpus"][0]["processes"] = [{"pid": 7, "gpu_instance": 2}]

    nvml = replay(tmp_path, LISTING.name, add_process)
    monkeypatch.setenv(REPLAY_VARIABLE, str(nvml.path))
    monkeypatch.setattr("socket.gethostname", lambda: "node3")
    out = tmp_path / "state.json"
    said = stderr_of("capture", "-o", out, code=0)
    assert (
        f"note: {nvml.origin}\n" in said and "GPUs: 1, instances: 2, of them with unknown tenants: 0" in said
    )
    assert state(out).gpus == state_of_driver(nvml, "node3")[0].gpus
    stderr_of("capture", "--host", "rack/node9", "-o", out, code=0)
    assert [gpu.id for gpu in state(out).gpus] == ["rack/node9/gpu0"]


def test_a_host_by_its_texts(tmp_path, texts, capsys, monkeypatch):
    out = tmp_path / "state.json"
    assert main(["capture", "--smi", texts[0], "--lgi", texts[1], "--host", "node3", "-o", str(out)]) == 0
    (gpu,) = state(out).gpus
    assert (gpu.id, [(item.profile, item.start, item.tenants) for item in gpu.instances]) == (
        "node3/gpu0", [("3g.20gb", 0, None), ("3g.20gb", 4, None)],
    )  # fmt: skip
    capsys.readouterr()
    assert main(["capture", "--lgi", texts[1], "--gpus", "1xA100-40GB"]) == 0
    printed = capsys.readouterr()
    assert '"id": "gpu0"' in printed.out and printed.err.endswith("of them with unknown tenants: 2\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(texts[0]).read_bytes())))
    assert main(["capture", "--smi", "-", "-o", str(out)]) == 0 and len(state(out).gpus[0].instances) == 2
    export = tmp_path / "export.yaml"
    export.write_text(
        "version: v1\nmig-configs:\n  current:\n  - devices: all\n    mig-enabled: true\n"
        "    mig-devices:\n      3g.20gb: 2\n"
    )
    assert main(["capture", "--mig-parted", str(export), "--gpus", "2xA100-40GB", "-o", str(out)]) == 0
    assert [len(gpu.instances) for gpu in state(out).gpus] == [2, 2]


def test_the_program_for_sites(tmp_path, capsys):
    assert main(["capture", "--script"]) == 0
    assert capsys.readouterr().out == site_program()
    out = tmp_path / "capture.py"
    assert main(["capture", "--script", "-o", str(out)]) == 0
    assert out.read_text(encoding="utf-8") == site_program() and capsys.readouterr().out == ""


@pytest.mark.parametrize(("words", "message"), [
    (("--gpus", "A30-24GB"), "--gpus: is given without a text"),
    (("--host", " ", "--script"), "--host: is ' ', which names no host"),
    (("--smi", "none.txt"), "none.txt: cannot be read: no such file"),
    (("--script", "--smi", "none.txt"), "--script: is given with --smi"),
])  # fmt: skip
def test_bad_options_are_refused(words, message, stderr_of):
    assert message in stderr_of("capture", *words)


def test_a_host_without_a_driver_is_refused(monkeypatch, stderr_of):
    monkeypatch.delenv(REPLAY_VARIABLE, raising=False)
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert "this host: has no driver to ask: " in stderr_of("capture")
