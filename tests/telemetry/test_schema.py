"""What the environment asks for, and that code and docs keep to the names of the schema."""

import ast

import pytest

from tests.support.paths import ROOT
from torchsplit_core.telemetry import schema
from torchsplit_core.telemetry.settings import ENDPOINT, MODE, TelemetrySettings, read_settings, unpack
from torchsplit_core.values import InputFault

URL = "http://collector:4318"


def strangers(source: str) -> list[str]:
    """Attributes in `span(…)` and `….set(…)` calls of telemetry, and span names, that the schema lacks."""
    if "telemetry" not in source:  # so it cannot import it
        return []
    tree = ast.parse(source)
    if not any(
        isinstance(node, ast.ImportFrom)
        and (
            node.module == "torchsplit_core.telemetry"
            or (node.module == "torchsplit_core" and any(part.name == "telemetry" for part in node.names))
        )
        for node in ast.walk(tree)
    ):
        return []
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in ("span", "set"):
            given = {keyword.arg for keyword in call.keywords if keyword.arg}
            found += sorted(given - set(schema.ATTRIBUTES))
        if name == "span" and call.args and isinstance(call.args[0], ast.Constant):
            found += [str(call.args[0].value)]
    return found


@pytest.mark.slow
def test_the_code_uses_the_names_of_the_schema():
    sources = [
        path for folder in ("torchsplit_core", "app", "pages") for path in (ROOT / folder).rglob("*.py")
    ]
    assert len(sources) > 100
    assert {path.name: found for path in sources if (found := strangers(path.read_text()))} == {}


def test_the_check_finds_a_stranger():
    source = (
        "from torchsplit_core import telemetry\nwith telemetry.span('own', batch=1) as s:\n s.set(p50_s=1)\n"
    )
    assert strangers(source) == ["batch", "own", "p50_s"]
    assert strangers(source.replace("from torchsplit_core import telemetry", "import telemetry")) == []


def test_the_docs_name_every_span_and_attribute():
    text = (ROOT / "docs" / "reference" / "telemetry.md").read_text()
    for name, meaning in schema.SPANS.items():
        assert f"| `{name}` | {meaning} |" in text
    for name, meaning in schema.ATTRIBUTES.items():
        assert f"| `{schema.PREFIX}{name}` | {meaning} |" in text


@pytest.mark.parametrize(("mode", "endpoint", "expected"), [
    ("", URL, None), ("off", URL, None), ("file", URL, "file"), ("on", None, "file"), ("on", URL, "otlp"),
    (" OTLP ", URL + "/", "otlp"),
])  # fmt: skip
def test_what_the_environment_asks_for(monkeypatch, tmp_path, mode, endpoint, expected):
    monkeypatch.setenv(MODE, mode)
    found = read_settings("test", tmp_path, endpoint)
    target = {"file": str(tmp_path), "otlp": URL + "/v1/traces"}
    assert (found and (found.kind, found.target)) == (expected and (expected, target[expected]))


def test_the_environment_comes_before_the_argument(monkeypatch):
    monkeypatch.setenv(MODE, "otlp")
    monkeypatch.setenv(ENDPOINT, "https://other")
    assert read_settings("test", None, URL) == TelemetrySettings("otlp", "test", "https://other/v1/traces")


@pytest.mark.parametrize("mode", ["yes", "grpc", "1"])
def test_an_unknown_mode_is_a_fault(monkeypatch, mode):
    monkeypatch.setenv(MODE, mode)
    with pytest.raises(InputFault, match="Known modes: off, on, file, otlp"):
        read_settings("test", None, None)


@pytest.mark.parametrize(
    "endpoint",
    [None, "collector:4318", "grpc://collector", "http://", "http://h:x", "http://[", "http://h:0"],
)
def test_otlp_needs_a_usable_address(monkeypatch, endpoint):
    monkeypatch.setenv(MODE, "otlp")
    with pytest.raises(InputFault, match="http"):
        read_settings("test", None, endpoint)


def test_settings_cross_a_process_boundary():
    settings = TelemetrySettings("otlp", "test", URL)
    assert unpack(settings.packed()) == settings
