"""Where spans go: read from the environment, validated, and packed for a child process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from torchsplit_core.values import InputFault, quoted, suggestion

MODE = "TORCHSPLIT_TELEMETRY"
MODES = ("off", "on", "file", "otlp")
FOLDER = "TORCHSPLIT_TELEMETRY_FOLDER"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
TRACES_PATH = "/v1/traces"  # opentelemetry.io, "OTLP/HTTP": the base URL's path for spans
DEFAULT_FOLDER = "torchsplit-telemetry"


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """Where spans go. `target`: an absolute folder for files, the full URL of the collector's span path for OTLP.

    `file_name`: the only file there, of bounded size; empty: a new file for each process.
    """

    kind: Literal["file", "otlp"]
    service: str
    target: str
    file_name: str = ""

    def packed(self) -> dict[str, str]:
        """JSON for a child's arguments; excludes headers, because a model's code must not see their tokens."""
        return {"kind": self.kind, "service": self.service, "target": self.target}

    def into(self, folder: Path) -> TelemetrySettings:
        """Settings that write the same service's spans as files to another folder."""
        return TelemetrySettings("file", self.service, str(folder))


def unpack(packed: Mapping[str, str]) -> TelemetrySettings:
    """The settings that a parent packed."""
    kind: Literal["file", "otlp"] = "otlp" if packed["kind"] == "otlp" else "file"
    return TelemetrySettings(kind, packed["service"], packed["target"])


def settings_for_file(service: str, path: Path) -> TelemetrySettings | None:
    """The settings of the environment for a job whose spans belong into a file at `path`; None for off.

    Without a mode in the environment that file is written where the exporter is installed. Raises as `read_settings`.
    """
    if not os.environ.get(MODE, "").strip():
        wanted = _can_write_files()
    else:
        settings = read_settings(service, None, None)
        if settings is None or settings.kind == "otlp" or os.environ.get(FOLDER):
            return settings
        wanted = True
    return TelemetrySettings("file", service, str(path.parent.resolve()), path.name) if wanted else None


def _can_write_files() -> bool:
    """Whether the exporter of the extra `telemetry` is installed; other packages bring other parts of it."""
    try:
        return find_spec("opentelemetry.exporter.otlp.json.file") is not None
    except ModuleNotFoundError:
        return False


def read_settings(service: str, folder: Path | None, endpoint: str | None) -> TelemetrySettings | None:
    """The settings of the environment; None for off, the default.

    `folder` and `endpoint` (a base URL) are used if the environment names none.
    Raises InputFault for an unknown mode, or for OTLP without a usable address.
    """
    mode = os.environ.get(MODE, "").strip().lower() or "off"
    if mode not in MODES:
        raise InputFault(
            MODE,
            f"unknown mode {quoted(mode)}",
            f"{suggestion(mode, MODES, 'modes')} Use file to write spans under a folder.",
        )
    if mode == "off":
        return None
    url = _url(endpoint)
    if mode == "otlp" or (mode == "on" and url is not None):
        if url is None:
            raise InputFault(
                MODE,
                "is otlp, but no collector's address is given",
                f"Set {ENDPOINT}=http://host:4318, or use file.",
            )
        return TelemetrySettings("otlp", service, url)
    chosen = Path(os.environ.get(FOLDER) or folder or DEFAULT_FOLDER)
    return TelemetrySettings("file", service, str(chosen.expanduser().resolve()))


def _url(endpoint: str | None) -> str | None:
    """The full URL for spans: a traces endpoint unchanged, or a base URL plus the path for spans."""
    if full := os.environ.get(TRACES_ENDPOINT):
        return _checked(TRACES_ENDPOINT, full)
    base = os.environ.get(ENDPOINT) or endpoint
    return None if base is None else _checked(ENDPOINT, base).removesuffix("/") + TRACES_PATH


def _checked(name: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InputFault(
            name,
            f"is {quoted(url)}, not an http or https URL with a host",
            "Give it as http://host:4318, OTLP over HTTP.",
        )
    return url
