"""Version 1 of the placement formats says GB where version 2 says GiB: it is read for ever, and answered in kind."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.placement.requests import tiny
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_text, schema_of, write_text
from torchsplit_core.placement import place
from torchsplit_core.placement.frontier import frontier
from torchsplit_core.values import InputFault

OLD = {
    "format": "torchsplit.placement_request",
    "version": 1,
    "model": {
        "layers": 4, "hidden_size": 4096, "ffn_size": 11008, "layer_weight_gb": 0.5,
        "active_layer_weight_gb": 0.25, "sequence_length": 2048, "batch_size": 16, "bytes_per_element": 2,
    },
    "gpus": [{"id": 0, "type": "A100", "memory_gb": 80}, {"id": 1, "type": "A100", "memory_gb": 40}],
    "throughput": {
        "kind": "linear",
        "coefficients": {"A100": {"sequence": -0.01, "batch": 5, "layers": 2, "constant": 150}},
    },
    "bandwidth_gb_per_s": [[0, 400], [300, 0]],
    "max_gpus_per_segment": 2,
}  # fmt: skip
"""A request as version 1 of docs/file-formats.md had it."""

RENAMED = {"memory_gb": "memory_gib", "bandwidth_gb_per_s": "bandwidth_gib_per_s"}


def newer(value: Any) -> Any:
    """The same plain data in version 2."""
    if isinstance(value, list):
        return [newer(item) for item in value]
    if isinstance(value, dict):
        found = {RENAMED.get(key, key): newer(item) for key, item in value.items()}
        return found | {"version": 2} if "version" in found else found
    return value


def test_a_request_of_version_1_means_what_it_meant():
    _, found = read_text(json.dumps(OLD))
    assert [gpu.memory_gib for gpu in found.gpus] == [80.0, 40.0]
    assert found.bandwidth_gib_per_s == ((0.0, 400.0), (300.0, 0.0))
    assert (found.model.layer_weight_gib, found.model.active_layer_weight_gib) == (0.5, 0.25)
    assert read_text(json.dumps(newer(OLD)))[1] == found
    needed = place(found).segments[0].memory_gib
    # 2^30 bytes, not 10^9: four layers, and the activations of eight sequences.
    assert needed[0] == pytest.approx(4 * 0.5 + 1.15 * 8 * 2048 * (3 * 4096 + 11008) * 2 / 2**30)


def test_each_version_has_its_own_names_and_no_others():
    for key, place_ in (("memory_gib", OLD["gpus"][0]), ("bandwidth_gib_per_s", OLD)):  # type: ignore[index]
        old = next(name for name, new in RENAMED.items() if new == key)
        for version in (1, 2):
            data = json.loads(json.dumps(OLD if version == 1 else newer(OLD)))
            where = data if place_ is OLD else data["gpus"][0]
            wrong, right = (key, old) if version == 1 else (old, key)
            where[wrong] = where.pop(right)
            with pytest.raises(InputFault, match=f"{right}: is missing"):
                read_text(json.dumps(data))
    for version in (0, 3, True, "1", None):
        with pytest.raises(InputFault, match=r"version: is .*, not a version of .* Give 1 to 2"):
            read_text(json.dumps({**OLD, "version": version}))


def test_what_is_written_comes_back_in_either_version():
    request = tiny(2, split="proportional", max_replicas=2)
    outcome, curve = place(request), frontier(tiny(2))
    assert outcome.replicas and curve.points
    for value in (request, outcome, curve):
        second, first = write_text(value), write_text(value, 1)
        assert json.loads(second) == newer(json.loads(first)) and json.loads(second)["version"] == 2
        assert "_gib" not in first
        assert "memory_gb" not in second.replace("memory_gb_per_s", "") and "bandwidth_gb" not in second
        assert read_text(first) == read_text(second) and read_text(first)[1] == value


def test_the_command_answers_in_the_version_that_it_was_asked_in(tmp_path):
    asked, out, curve = tmp_path / "r.json", tmp_path / "out.json", tmp_path / "c.json"
    for version, data in ((1, OLD), (2, newer(OLD))):
        asked.write_text(json.dumps(data))
        assert main(["place", str(asked), "-o", str(out), "--frontier", str(curve)]) == 0
        for path in (out, curve):
            assert json.loads(path.read_text())["version"] == version
            assert ('"memory_gb"' in path.read_text()) == (version == 1)


def test_the_schema_takes_both_versions():
    for name in ("placement_request", "placement", "placement_frontier"):
        schema = schema_of(f"torchsplit.{name}")
        assert set(schema["discriminator"]["mapping"]) == {"1", "2"} and len(schema["oneOf"]) == 2
    definitions = schema_of("torchsplit.placement_request")["$defs"]
    assert "memory_gb" in definitions["PlacementGpuFile1"]["required"]
    assert "memory_gib" in definitions["PlacementGpuFile"]["required"]
    both = (definitions[f"PlacementRequestFile{number}"]["properties"] for number in ("", "1"))
    assert ["bandwidth_gib_per_s" in one for one in both] == [True, False]


def test_a_large_matrix_has_a_line_a_row_in_either_version():
    request = replace(tiny(2), bandwidth_gib_per_s=((1.5,) * 4,) * 4)
    for version, name in ((1, "gb"), (2, "gib")):
        text = write_text(request, version)
        assert f'"bandwidth_{name}_per_s": [\n  [1.5, 1.5, 1.5, 1.5],\n' in text
