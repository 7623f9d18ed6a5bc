"""Spans around TorchSplit's work, usable anywhere; with telemetry off, they cost one lookup of a name.

Only `export` imports opentelemetry, and it is loaded only if telemetry is on.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from torchsplit_core.isolation import private_temp_dir
from torchsplit_core.telemetry.active_span import ActiveSpan
from torchsplit_core.telemetry.settings import read_settings, settings_for_file, unpack
from torchsplit_core.values import InputFault

if TYPE_CHECKING:
    from torchsplit_core.telemetry.export import SpanExport


class _NoopSpan:
    """The span of a process without telemetry; one shared instance."""

    __slots__ = ()

    def __enter__(self) -> _NoopSpan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def set(self, **attributes: object) -> None:
        """Do nothing."""


_NOOP_SPAN = _NoopSpan()
_export: SpanExport | None = None


def configure(service: str, folder: Path | None = None, endpoint: str | None = None) -> bool:
    """Start exporting spans if the environment asks for it; returns whether telemetry is on.

    `TORCHSPLIT_TELEMETRY`: `off` (the default), `file`, `otlp`, or `on` (OTLP if an endpoint is given,
    files otherwise). `folder` and `endpoint` (the collector's base URL) are used if the environment names
    none. Works once per process; a second call changes nothing. At exit, waiting spans are exported in
    at most 2 s. Raises InputFault for a bad mode, address or folder.
    """
    if _export is None and (settings := read_settings(service, folder, endpoint)) is not None:
        from torchsplit_core.telemetry.export import SpanExport

        _use(SpanExport(settings))
    return _export is not None


def configure_job(service: str, path: Path) -> bool:
    """Start exporting the spans of a job to the file at `path`, unless the environment asks for another place or none.

    Also without a mode in the environment, where the exporter is installed. A file that cannot be written costs the
    spans, not the job. Like `configure` otherwise.
    """
    if _export is None and (settings := settings_for_file(service, path)) is not None:
        from torchsplit_core.telemetry.export import SpanExport

        with suppress(InputFault) if settings.file_name else nullcontext():
            _use(SpanExport(settings))
    return _export is not None


def shutdown() -> bool:
    """Deliver the remaining spans and stop, in at most 2 s; False if spans were lost. True if telemetry is off."""
    global _export
    if _export is None:
        return True
    ending, _export = _export, None
    atexit.unregister(shutdown)
    return ending.close()


def span(name: str, **attributes: object) -> AbstractContextManager[ActiveSpan]:
    """A span around a block, child of the enclosing span; an exception marks it failed and propagates.

    `name` is one of `schema.SPANS`; attributes are numbers, booleans, text, or sequences of one of
    these, by their names in `schema.ATTRIBUTES`.
    """
    return _NOOP_SPAN if _export is None else _export.span(name, attributes)


def carrier() -> dict[str, str]:
    """The trace context and settings for a child process, as JSON for its arguments; empty if telemetry is off."""
    return {} if _export is None else _export.settings.packed() | _export.parent()


@contextmanager
def adopt(carried: Mapping[str, str] | None) -> Iterator[None]:
    """Continue a parent's trace in a child, from its `carrier`: spans in the block are children of the parent's span.

    A child without telemetry is configured from the carrier alone, without the environment, and delivers
    its spans when the block ends, because its process may end without running exit handlers.
    """
    if not carried:
        yield
        return
    from torchsplit_core.telemetry.export import SpanExport, with_parent

    is_outermost = _export is None
    if is_outermost:
        _use(SpanExport(unpack(carried)))
    try:
        with with_parent(carried):
            yield
    finally:
        if is_outermost:
            shutdown()


@contextmanager
def handed_on() -> Iterator[tuple[dict[str, str], tuple[str, ...]]]:
    """A carrier for an isolated child's arguments, and the folders that it must be able to write to.

    Such a child has no network and no access to the folder of spans, so it writes to a folder of its own; this process
    exports those spans when the block ends. Both are empty if telemetry is off.
    """
    if _export is None:
        yield {}, ()
        return
    export = _export
    with private_temp_dir() as folder:
        try:
            yield export.settings.into(folder).packed() | export.parent(), (str(folder),)
        finally:
            export.export_child_spans(folder)


def _use(export: SpanExport) -> None:
    global _export
    _export = export
    atexit.register(shutdown)
