"""A server, an engine or a load generator as a child process that exchanges lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torchsplit_core.bundle import python_path
from torchsplit_core.isolation.faults import printable_line
from torchsplit_core.values import InputFault

FRONT = "torchsplit_core.serving.frontend"
GENERATOR = "torchsplit_core.serving.load_test.generator"
LLM_ENGINE = "torchsplit_core.serving.llm_engine"
NAMES = {FRONT: "the server", GENERATOR: "the load generator", LLM_ENGINE: "the engine"}
END_S = 60.0


@contextmanager
def run_child(module: str, command: Mapping[str, Any]) -> Iterator[tuple[int, Iterator[dict[str, Any]]]]:
    """Run a module as a child that ends when its input does; its process id, and the lines that it writes."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | {"PYTHONPATH": python_path()},
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(command).encode() + b"\n")
            process.stdin.flush()
            yield process.pid, (json.loads(line) for line in process.stdout)
            status = process.poll()
            if status not in (0, 2, None):
                errors.seek(0)
                lines = errors.read().decode(errors="replace").strip().splitlines() or [""]
                last = printable_line(lines[-1][:300])
                raise InputFault(NAMES[module], f"ended with {last or f'status {status}'}", "Try again.")
        finally:
            with contextlib.suppress(OSError):
                process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
