"""Where spans go: read from the environment, validated, and packed for a child process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
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
    """Where spans go. `target`: an absolute folder for files, the full URL of the collector's span path for OTLP."""

    kind: Literal["file", "otlp"]
    service: str
    target: str

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
