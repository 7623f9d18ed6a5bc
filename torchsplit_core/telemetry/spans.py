"""Spans around our own work, usable anywhere; off they cost a look at one name.

opentelemetry is imported by `export`, and that only where telemetry is on.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from torchsplit_core.isolation import private_temp_dir
from torchsplit_core.telemetry.active_span import ActiveSpan
from torchsplit_core.telemetry.settings import read_settings, unpack

if TYPE_CHECKING:
    from torchsplit_core.telemetry.export import SpanExport


class _NoopSpan:
    """The span of a process without telemetry: one for all."""

    __slots__ = ()

    def __enter__(self) -> _NoopSpan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def set(self, **attributes: object) -> None:
        """Nothing listens."""


_NOOP_SPAN = _NoopSpan()
_export: SpanExport | None = None


def configure(service: str, folder: Path | None = None, endpoint: str | None = None) -> bool:
    """Begin to export spans where the environment asks for it; whether it does.

    `TORCHSPLIT_TELEMETRY`: `off` (the default), `file`, `otlp`, or `on` (OTLP where an endpoint is given,
    files otherwise). `folder` and `endpoint` (the collector's base URL) serve where the environment names
    none. Once a process; a second call changes nothing. What is not exported when the process ends is, in
    at most 2 s. Raises InputFault for a bad mode, address or folder.
    """
    if _export is None and (settings := read_settings(service, folder, endpoint)) is not None:
        from torchsplit_core.telemetry.export import SpanExport

        _use(SpanExport(settings))
    return _export is not None


def shutdown() -> bool:
    """Deliver what is left and stop, in at most 2 s; False where spans were lost. Off, there is nothing to lose."""
    global _export
    if _export is None:
        return True
    ending, _export = _export, None
    atexit.unregister(shutdown)
    return ending.close()


def span(name: str, **attributes: object) -> AbstractContextManager[ActiveSpan]:
    """A span around a block, child of the span around it; an exception marks it failed and goes on.

    `name` is one of `schema.SPANS`; attributes are numbers, truth values, text, or sequences of one of
    these, by their names in `schema.ATTRIBUTES`.
    """
    return _NOOP_SPAN if _export is None else _export.span(name, attributes)


def carrier() -> dict[str, str]:
    """What a child process needs to carry on here, as JSON for its arguments; empty where telemetry is off."""
    return {} if _export is None else _export.settings.packed() | _export.parent()


@contextmanager
def adopt(carried: Mapping[str, str] | None) -> Iterator[None]:
    """Carry on in a child what `carrier` packed: spans of the block are children of the parent's span.

    A child that has no telemetry yet gets it from the carrier alone, needing no environment, and delivers
    its spans when the block ends: its process may end without handlers of its own.
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
    """What an isolated child needs to carry on here: a carrier for its arguments, and folders it must write to.

    Such a child has no network and not the folder of the spans, so it writes into one of its own; what it wrote
    joins this process's spans when the block ends. Empty where telemetry is off.
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
