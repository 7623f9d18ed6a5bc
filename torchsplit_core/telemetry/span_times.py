"""The spans of a trace as a tree: time of each span by itself, and the critical path through it.

Files come from anywhere: parents may be missing, links may form cycles, and clocks of processes may differ. Each is
told in a note, and no walk is recursive, since a chain of parents may be as long as the file.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchsplit_core.isolation.faults import printable_line
from torchsplit_core.telemetry.schema import PREFIX
from torchsplit_core.telemetry.span_reader import SpanRecord, SpanTotal, by_start, summary

_NS_PER_MS = 1e6
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class SpanNode:
    """A span in its tree, `depth` 0 for a root; times in milliseconds.

    `start_ms` counts from the first span of the trace. `self_ms`: the span's time in which none of its children ran.
    `critical_ms`: the part of that on the critical path, the chain of work that the end of the root waited for; over
    the tree of a root it adds up to the root's duration.
    """

    span: SpanRecord
    depth: int
    start_ms: float
    self_ms: float
    critical_ms: float

    @property
    def total_ms(self) -> float:
        """Milliseconds from start to end."""
        return self.span.duration_ms

    @property
    def label(self) -> str:
        """The span's name without our prefix, and what it worked on; one line without control characters."""
        shown = {key.removeprefix(PREFIX): value for key, value in self.span.attributes}
        batch = shown.get("batch_size")
        counted = None if batch is None else f"batch {batch}"
        about = (counted, shown.get("model"), shown.get("device"), shown.get("slice"))
        words = (self.span.name.removeprefix(PREFIX), *(str(part) for part in about if part is not None))
        return printable_line(" ".join(words))


@dataclass(frozen=True, slots=True)
class SpanTree:
    """All spans, each before its children and these by their starts; totals by name, largest first; notes.

    `wall_ms`: milliseconds from the first start to the last end.
    """

    nodes: tuple[SpanNode, ...]
    totals: tuple[SpanTotal, ...]
    wall_ms: float
    notes: tuple[str, ...]

    def slowest(self, count: int) -> tuple[SpanNode, ...]:
        """The spans with the most time by themselves, longest first."""
        return tuple(sorted(self.nodes, key=lambda node: -node.self_ms)[:count])

    def critical_path(self) -> tuple[SpanNode, ...]:
        """The spans with time on the critical path of their root, by start."""
        on_path = (node for node in self.nodes if node.critical_ms > 0)
        return tuple(sorted(on_path, key=lambda node: (node.start_ms, node.depth)))


def span_tree(spans: Iterable[SpanRecord], notes: Sequence[str] = ()) -> SpanTree:
    """The tree of spans as `read_trace` gives them; its `notes` come first."""
    by_key: dict[_Key, SpanRecord] = {}
    repeated = 0
    for span in by_start(spans):
        if (key := (span.trace_id, span.span_id)) in by_key:
            repeated += 1
        else:
            by_key[key] = span
    parents = _parents(by_key)
    cut = _cut_cycles(parents)
    children: dict[_Key, list[_Key]] = defaultdict(list)
    for key, parent in parents.items():
        if parent is not None:
            children[parent].append(key)
    roots = [key for key, parent in parents.items() if parent is None]
    critical = _critical_ns(by_key, roots, children)
    begun = min((span.start_unix_ns for span in by_key.values()), default=0)
    ended = max((span.end_unix_ns for span in by_key.values()), default=0)
    nodes = []
    waiting = [(key, 0) for key in reversed(roots)]
    while waiting:
        key, depth = waiting.pop()
        span = by_key[key]
        parts = [by_key[child] for child in children[key]]
        self_ns = span.end_unix_ns - span.start_unix_ns - _covered_ns(span, parts)
        start_ms = (span.start_unix_ns - begun) / _NS_PER_MS
        nodes.append(SpanNode(span, depth, start_ms, self_ns / _NS_PER_MS, critical[key] / _NS_PER_MS))
        waiting.extend((child, depth + 1) for child in reversed(children[key]))
    missing = sum(
        span.parent_id is not None and (span.trace_id, span.parent_id) not in by_key
        for span in by_key.values()
    )
    outside = sum(
        parent is not None and not _is_within(by_key[key], by_key[parent]) for key, parent in parents.items()
    )
    counted = (
        (repeated, "spans have the id of another and are left out"),
        (
            missing,
            "spans name a parent that is not in the file (it was killed, or wrote another file): roots here",
        ),
        (cut, "circles of parents are cut at their first span"),
        (outside, "spans begin before their parent or end after it, as where clocks of processes differ"),
    )
    differences = (f"{count} {words}" for count, words in counted if count)
    return SpanTree(
        tuple(nodes), summary(by_key.values()), (ended - begun) / _NS_PER_MS, (*notes, *differences)
    )


def _parents(by_key: Mapping[_Key, SpanRecord]) -> dict[_Key, _Key | None]:
    """The parent of each span; None where it has none or the file lacks it."""
    parents: dict[_Key, _Key | None] = {}
    for key, span in by_key.items():
        parent = (span.trace_id, span.parent_id) if span.parent_id is not None else None
        parents[key] = parent if parent in by_key else None
    return parents


def _cut_cycles(parents: dict[_Key, _Key | None]) -> int:
    """Make the first span of each circle a root; returns how many there were."""
    settled: set[_Key] = set()
    cut = 0
    for first in parents:
        chain: dict[_Key, None] = {}
        key: _Key | None = first
        while key is not None and key not in settled and key not in chain:
            chain[key] = None
            key = parents[key]
        if key is not None and key in chain:
            parents[key] = None
            cut += 1
        settled.update(chain)
    return cut


def _is_within(span: SpanRecord, parent: SpanRecord) -> bool:
    return parent.start_unix_ns <= span.start_unix_ns and span.end_unix_ns <= parent.end_unix_ns


def _covered_ns(span: SpanRecord, parts: Iterable[SpanRecord]) -> int:
    """Nanoseconds of the span in which at least one of its children, by start, ran."""
    covered, until = 0, span.start_unix_ns
    for part in parts:
        begin, end = max(part.start_unix_ns, until), min(part.end_unix_ns, span.end_unix_ns)
        if end > begin:
            covered += end - begin
            until = end
    return covered


def _critical_ns(
    by_key: Mapping[_Key, SpanRecord], roots: Iterable[_Key], children: Mapping[_Key, Sequence[_Key]]
) -> Counter[_Key]:
    """Nanoseconds on the critical path of each span by itself.

    From the end of a span backwards: what it last waited for is the child that ended last; before that child's start,
    the one that ended last until then, and so on. What lies between is the span's own time.
    """
    critical: Counter[_Key] = Counter()
    waiting = [(root, by_key[root].start_unix_ns, by_key[root].end_unix_ns) for root in roots]
    while waiting:
        key, begin, moment = waiting.pop()
        parts = children.get(key, ())
        for child in sorted(parts, key=lambda part: by_key[part].end_unix_ns, reverse=True):
            start = max(by_key[child].start_unix_ns, begin)
            end = min(by_key[child].end_unix_ns, by_key[key].end_unix_ns)
            if start < end <= moment:
                critical[key] += moment - end
                waiting.append((child, start, end))
                moment = start
        critical[key] += moment - begin
    return critical
