"""Models that answer in the place of the code that runs them: one message, whoever asked."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchsplit_core import workflow
from torchsplit_core.profiling.training_step.measurement import measure_step, track_peak
from torchsplit_core.stages.export import export_stages
from torchsplit_core.values import InputFault, PartitionCandidate

pytestmark = pytest.mark.torch

MODEL = """
import os
import torch

class Client:
    batch_sizes = (1, 2)

    def get_model(self):
        for number in range(3, 64):
            try:
                os.write(number, LINE)
            except OSError:
                pass
        return torch.nn.Linear(4, 4).eval()

    def get_example_inputs(self, batch_size):
        return (torch.randn(batch_size, 4),), {}

client = Client()
"""
CUT = PartitionCandidate((("linear",),), (1.0,), 1.0, (), (1,))
ASKED: dict[str, Callable[[str, Path], object]] = {
    "trace": lambda source, _: workflow.trace(source, trust=True),
    "profile": lambda source, _: workflow.profile(source, device="cpu", trust=True),
    "step": lambda source, _: measure_step(source, 2, trust=True),
    "peak": lambda source, _: track_peak(source, 2, trust=True),
    "parts": lambda source, folder: export_stages(
        source, CUT, folder / "parts", architecture_hash="x", trust=True
    ),
}
FORGED = {
    "a text": b'{"result": "forged"}\n',
    "an empty object": b'{"result": {}}\n',
    "other fields": b'{"result": {"peak_bytes": -1, "seconds": NaN, "number": 7, "refused": [], "manifest": {}}}\n',
    "nothing": b'{"result": null}\n',
}


def source_of(folder: Path, line: bytes) -> str:
    folder.joinpath("model.py").write_text(MODEL.replace("LINE", repr(line)))
    return f"{folder / 'model.py'}:client"


@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("asked", ASKED)
def test_a_forged_result_is_one_message(asked, forged, tmp_path):
    with pytest.raises(
        InputFault, match=r"has not the form expected|ended without the model's graph"
    ) as caught:
        ASKED[asked](source_of(tmp_path, FORGED[forged]), tmp_path)
    assert "write only to file descriptors that it opened" in caught.value.remedy
    assert not (tmp_path / "parts").exists()


@pytest.mark.parametrize(("part", "word"), [
    (b'"forged"', "no attribute"),
    (b'{"graph": []}', "has not the form expected"),
    (b'{"graph": {"format": "torchsplit.graph", "version": 1, "nodes": [{}]}}',
     r"nodes\[0\]\.kind: is missing"),
    (b'{"batch_sizes": ["1"]}', "0: Input should be a valid integer"),
    (b'{"environment": {"torch": [1]}}', "environment|torch"),
    (b'{"begin": "batch"}', "valid list"),
    (b'{"batch": {"batch_size": 1, "mean_ms": 0}}', "Input should be greater than 0|Field required"),
    (b'{"nodes": {"batch_size": 1, "runs_ms": [], "items": []}}', "runs_ms"),
    (b'{"failure": {"kind": "batch", "batch_size": 1, "reason": "x", "message": ""}}', "reason"),
    (b'{"figures": 1}', "'figures' is missing or unknown"),
])  # fmt: skip
def test_a_forged_point_of_a_profile_is_one_message(part, word, tmp_path):
    source = source_of(tmp_path, b'{"part": ' + part + b"}\n")
    with pytest.raises(InputFault, match=word) as caught:
        workflow.profile(source, device="cpu", trust=True)
    assert "has not the form expected" in caught.value.problem


def test_every_answer_of_a_child_has_a_reader():
    """Whoever asks a confined child names what reads its answer, and its parts where it has some."""
    calls = [
        (path, call)
        for path in (ROOT / "torchsplit_core").rglob("*.py")
        if path.name != "cost.py"  # how long an empty function takes
        if "run_limited" in (text := path.read_text(encoding="utf-8"))
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "run_limited"
    ]
    assert len(calls) >= 7
    for path, call in calls:
        named = {word.arg for word in call.keywords}
        assert "read" in named, path
        assert "receive" not in named or "read_part" in named, path
