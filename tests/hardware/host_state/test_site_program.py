"""The program for sites: it runs on its own, in the syntax of Python 3.6, and writes what the driver's reader does."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.hardware.listings import DATA, replay
from tests.support.hardware.smi_texts import install_fake
from torchsplit_core.files import read_text
from torchsplit_core.hardware.host_state.from_driver import state_of_driver
from torchsplit_core.hardware.host_state.products import site_program
from torchsplit_core.values import ForeignTenant, HostState

LISTINGS = sorted(path.name for path in DATA.glob("*.json"))
NEWER = r"capture_output|text=True|fromisoformat|removeprefix|dataclass|from __future__|walrus|strict="
"""What Python 3.6 does not have, and its parser would not refuse."""


def run(folder: Path, *words: str, smi: bool = True) -> subprocess.CompletedProcess[str]:
    """The program in a folder of its own, without the packages of this environment; PATH has the fake alone."""
    program = folder / "capture.py"
    program.write_text(site_program(), encoding="utf-8")
    environment = {"PATH": str(folder) if smi else os.devnull, "LC_ALL": "C"}
    return subprocess.run(
        [sys.executable, "-I", "-S", str(program), "--host", "node7", *words], cwd=folder, env=environment,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def written(folder: Path) -> HostState:
    done = run(folder)
    assert done.returncode == 0, done.stderr
    return read_text(done.stdout, expected="torchsplit.host_state")[1]


def with_processes(*processes: tuple[int, int | None]) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data["gpus"][0]["processes"] = [{"pid": pid, "gpu_instance": place} for pid, place in processes]

    return change


@pytest.mark.parametrize("name", LISTINGS)
def test_it_writes_the_state_that_the_driver_tells(name, tmp_path):
    ids = [item["id"] for item in json.loads((DATA / name).read_text())["gpus"][0]["instances"]]
    nvml = replay(
        tmp_path, name, with_processes(*((40 + (number or 0), number) for number in ids[:2] or [None]))
    )
    install_fake(tmp_path, nvml)
    state = written(tmp_path)
    driver, _ = state_of_driver(nvml, "node7")
    assert state.gpus == driver.gpus
    assert any(item.tenants for gpu in state.gpus for item in gpu.instances)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", state.captured_at or "")


def test_where_nvidia_smi_does_not_place_processes_the_tenants_are_unknown(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json", with_processes((77, 3)))
    install_fake(tmp_path, nvml, xml=False)
    assert {item.tenants for item in written(tmp_path).gpus[0].instances} == {None}
    install_fake(tmp_path, replay(tmp_path, "a30_three_slices.json"), xml=False)
    assert {item.tenants for item in written(tmp_path).gpus[0].instances} == {()}


def test_a_process_under_the_uuid_of_its_mig_device_counts(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json", with_processes((77, 3)))
    install_fake(tmp_path, nvml, xml=False)
    fake = tmp_path / "nvidia-smi"
    device = nvml.mig_devices(0)[1].uuid
    fake.write_text(fake.read_text().replace(f"77, {nvml.gpu(0).uuid}", f"77, {device}"))
    assert {item.tenants for item in written(tmp_path).gpus[0].instances} == {None}


def test_a_hidden_process_is_not_none(tmp_path):
    nvml = replay(tmp_path, "t4_without_mig.json", with_processes((77, None)))
    install_fake(tmp_path, nvml)
    assert written(tmp_path).gpus[0].instances[0].tenants == (ForeignTenant("process 77"),)
    fake = tmp_path / "nvidia-smi"
    fake.write_text(fake.read_text().replace("77, ", "[Insufficient Permissions], "))
    assert written(tmp_path).gpus[0].instances[0].tenants is None


def test_what_it_cannot_read_is_one_message_and_no_file(tmp_path):
    def refused(*words: str, **more: Any) -> str:
        done = run(tmp_path, *words, **more)
        assert done.returncode == 2 and not done.stdout and done.stderr.count("\n") == 1
        return done.stderr

    assert "capture: nvidia-smi --query-gpu" in (said := refused(smi=False)) and "cannot be run" in said
    nvml = replay(tmp_path, "a30_three_slices.json")
    install_fake(tmp_path, nvml, is_root=False)
    assert "nvidia-smi mig -lgi: fails: 'Insufficient Permissions'. Run this as root" in refused()
    install_fake(tmp_path, nvml)
    fake = tmp_path / "nvidia-smi"
    text = fake.read_text()
    fake.write_text(text.replace("0x20B710DE", "0x1").replace("NVIDIA A30, ", "NVIDIA T1000, "))
    assert "GPU 0 is 'NVIDIA T1000', which is not in the catalogue. Leave such GPUs out" in refused()
    assert "lists no GPU of the catalogue" in refused("--skip-unknown")
    fake.write_text(text.replace("0, GPU-", "GPU is lost, GPU-"))
    assert "answers 'GPU is lost, GPU-1e44" in refused()
    fake.write_text(text)
    assert "cannot be written: Is a directory" in refused("-o", str(tmp_path))
    out = tmp_path / "state.json"
    assert run(tmp_path, "-o", str(out)).stdout == ""
    state = read_text(out.read_text())[1]
    assert replace(state, captured_at=None) == replace(written(tmp_path), captured_at=None)


def test_it_needs_no_more_than_python_3_6_and_its_library():
    source = site_program()
    tree = ast.parse(source, feature_version=(3, 6))
    modules = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [item.name for item in node.names]
        )
    }
    assert modules <= sys.stdlib_module_names
    code = source.replace('"""' + source.split('"""')[1] + '"""', "")
    assert not re.search(NEWER, code) and not re.search(r"\b(list|dict|tuple)\[|\w \| None", code)
    assert source.startswith("#!/usr/bin/env python3\n") and "A30-24GB" in source
