"""The tree of a trace: own time, the critical path, and files whose links or clocks are wrong."""

import itertools
import random

import pytest

from torchsplit_core.telemetry import SpanRecord, parse_trace, read_trace, span_reader, span_tree
from torchsplit_core.values import InputFault


def span(number: int, parent: int, start: int, end: int, name: str = "work") -> SpanRecord:
    """A span of whole milliseconds; parent 0: none."""
    parent_id = f"{parent:016x}" if parent else None
    return SpanRecord(name, "", "a" * 32, f"{number:016x}", parent_id, start * 10**6, end * 10**6, (), None)


def times(tree, name):
    return {int(node.span.span_id, 16): getattr(node, name) for node in tree.nodes}


def test_time_by_itself_counts_parallel_children_once():
    tree = span_tree([span(1, 0, 0, 100), span(2, 1, 10, 50), span(3, 1, 30, 60), span(4, 2, 10, 20)])
    assert times(tree, "self_ms") == {1: 50, 2: 30, 3: 30, 4: 10}
    assert times(tree, "depth") == {1: 0, 2: 1, 4: 2, 3: 1}
    assert [node.start_ms for node in tree.nodes] == [0, 10, 10, 30]


def test_the_critical_path_is_what_the_end_waited_for():
    # 2 and 3 side by side: the end waits for 3, which ends last; 2 ended before 4 began, so 4 is on the path alone.
    tree = span_tree([span(1, 0, 0, 100), span(2, 1, 0, 40), span(3, 1, 50, 90), span(4, 1, 45, 70)])
    assert times(tree, "critical_ms") == {1: 20, 2: 40, 3: 40, 4: 0}
    assert [int(node.span.span_id, 16) for node in tree.critical_path()] == [1, 2, 3]


def test_sums_hold_on_any_tree():
    draw = random.Random(7)
    for _ in range(200):
        spans = [span(1, 0, 0, 60)]
        for number in range(2, 12):
            parent = draw.choice(spans)
            begin = draw.randint(parent.start_unix_ns // 10**6, parent.end_unix_ns // 10**6)
            end = draw.randint(begin, parent.end_unix_ns // 10**6)
            spans.append(span(number, int(parent.span_id, 16), begin, end))
        tree = span_tree(spans)
        assert len(tree.nodes) == len(spans) and tree.notes == ()
        assert sum(node.critical_ms for node in tree.nodes) == pytest.approx(60)
        for node in tree.nodes:
            inside = [other for other in spans if other.parent_id == node.span.span_id]
            moments = range(node.span.start_unix_ns // 10**6, node.span.end_unix_ns // 10**6)
            alone = sum(
                not any(part.start_unix_ns <= moment * 10**6 < part.end_unix_ns for part in inside)
                for moment in moments
            )
            assert node.self_ms == pytest.approx(alone)


def test_missing_parents_circles_repeats_and_clocks_are_told():
    tree = span_tree([
        span(1, 9, 0, 10), span(2, 3, 0, 10), span(3, 2, 1, 9), span(4, 4, 0, 1), span(5, 1, 5, 30), span(5, 1, 5, 30),
    ], ["before"])  # fmt: skip
    assert len(tree.nodes) == 5
    assert [note.split()[0] for note in tree.notes] == ["before", "1", "1", "2", "1"]
    assert times(tree, "depth") == {1: 0, 5: 1, 2: 0, 3: 1, 4: 0}
    assert all(node.self_ms >= 0 and node.critical_ms >= 0 for node in tree.nodes)


def test_a_chain_as_long_as_the_file():
    spans = [span(number, number - 1, 0, 10) for number in range(1, 20_001)]
    tree = span_tree(itertools.chain(reversed(spans)))
    assert tree.nodes[-1].depth == 19_999 and tree.nodes[-1].critical_ms == 10


def test_a_label_is_printable_on_one_line():
    (node,) = span_tree([span(1, 0, 0, 1, "torchsplit.a\n\x1b\ud800")]).nodes
    assert node.label == "a \\x1b\\ud800"


def test_nothing_is_a_tree_too():
    assert span_tree(()).nodes == () and span_tree(()).wall_ms == 0


def test_a_last_line_that_is_cut_off_is_a_note(tmp_path):
    path = tmp_path / "spans.jsonl"
    path.write_bytes(b'{"resourceSpans": []}\n{"resourceSp')
    assert read_trace(path) == (
        (),
        (f"{path}: the last line is cut off, as by a kill; its spans are missing",),
    )
    with pytest.raises(InputFault, match="line 1"):
        parse_trace(b'{"resourceSp\n', "it")


def test_more_than_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(span_reader, "LARGEST_TRACE_BYTES", 60)
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(b'{"resourceSpans": []}' + b" " * 20)
    with pytest.raises(InputFault, match=r"b\.jsonl.*MiB"):
        read_trace(tmp_path)


@pytest.mark.parametrize("path", ["absent", "nul\0"])
def test_a_path_that_cannot_be_read(tmp_path, path):
    with pytest.raises(InputFault, match="cannot be read"):
        read_trace(tmp_path / path)
