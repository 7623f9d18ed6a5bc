"""The integer programs of the exact search and of the curve as LP text: what their golden files hold.

`python -m tools.write_placement_lps` writes them anew after a change of a program.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np

from tests.support.lp import highs_text
from tests.support.paths import ROOT
from tests.support.placement.golden import DOCS
from torchsplit_core.placement.latency import path_latency
from torchsplit_core.placement.latency import program as tiers_program
from torchsplit_core.placement.latency.choices import Choice, Choices
from torchsplit_core.placement.latency.pipeline_plan import PassCosts
from torchsplit_core.placement.latency.program import LatencyProgram
from torchsplit_core.placement.latency.programs import LatencyPrograms
from torchsplit_core.placement.latency.seconds_program import SecondsProgram
from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.search import packing, path_program
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.large_segments import cover_packing as covers_packing
from torchsplit_core.placement.search.large_segments.covers import Covers
from torchsplit_core.placement.search.network import Component, GpuClasses
from torchsplit_core.placement.search.path_program import PathProgram
from torchsplit_core.placement.search.patterns import SegmentPatterns, build_patterns
from torchsplit_core.placement.search.segment_table import Items, build_table
from torchsplit_core.solver.row_program import RowProgram

HEADER = "| row | formula |\n"
KINDS = ("a100", "t4")
COSTS = PassCosts(1000.0, 1.0)


class _Built(Exception):
    """Carries a program out of the function that builds it."""


def caught(kind: type[RowProgram], method: str, build: Callable[[], object]) -> Any:
    """The program on which `build` calls the method first."""

    def stop(program: RowProgram, *_: object, **__: object) -> None:
        raise _Built(program)

    with patch.object(kind, method, stop):
        try:
            build()
        except _Built as built:
            return built.args[0]
    raise AssertionError(f"no program was built for {method}")


def lp_text(program: RowProgram, rows: Sequence[str], columns: Sequence[str], legend: Sequence[str]) -> str:
    """The program in whole numbers as LP text with these names, below what the numbers stand for."""
    text = highs_text(program.load(whole=True), rows, columns)
    return "".join(f"\\ {line}\n" for line in legend) + "\n" + text


def items(*rows: tuple[tuple[int, int], int, int]) -> Items:
    """Items of (GPUs of each kind, first layer count, last one)."""
    counts = np.array([own for own, _, _ in rows], dtype=np.int64)
    low, high = (np.array([row[place] for row in rows], dtype=np.int64) for place in (1, 2))
    return Items(np.arange(len(rows)), counts, counts.sum(axis=1), low, high)


def items_legend(own: Items, name: str = "item", first: int = 0) -> list[str]:
    return [
        f"{name} {first + number}: {' '.join(f'{n} {kind}' for n, kind in zip(row, KINDS, strict=True) if n)}, "
        f"{own.low[number]} to {own.high[number]} layers"
        for number, row in enumerate(own.counts.tolist())
    ]


def packing_text() -> str:
    """Five layers on two A100 and three T4; one item takes a GPU of each kind."""
    own = items(((1, 0), 1, 3), ((0, 1), 1, 1), ((1, 1), 2, 4))
    fleet = np.array([2, 3])
    program = caught(
        RowProgram,
        "solve",
        lambda: packing.pack(own, fleet, 5, SearchClock.start(60.0), fewest=True, segments=(3, 3)),
    )
    rows = [f"gpus({kind})" for kind in KINDS] + ["layers_least", "layers_most", "segments"]
    return lp_text(program, rows, [f"n({number})" for number in range(3)], items_legend(own))


def covers_text() -> str:
    """An even cover of two GPUs, one of two or three GPUs whose shares differ, and an item of one A100."""
    covers = Covers(
        np.array([[0.5, 0.5], [0.6, 0.25]]), np.array([2, 2]), np.array([2, 3]), np.array([1, 1]),
        np.array([4, 6]),
    )  # fmt: skip
    own = items(((1, 0), 1, 2))
    program = caught(
        RowProgram,
        "solve",
        lambda: covers_packing.pack_covers(
            covers, own, np.array([3, 4]), 9, SearchClock.start(60.0), fewest=True, segments=(3, 3)
        ),
    )
    rows = ["sizes_least(0)", "sizes_least(1)", "sizes_most(1)", "batch(1)"]
    rows += [f"gpus({kind})" for kind in KINDS] + ["layers_least", "layers_most", "segments"]
    columns = [f"n({number})" for number in range(3)]
    columns += [f"y({cover},{kind})" for cover in range(2) for kind in KINDS]
    legend = [
        f"cover {number}: {covers.least[number]} to {covers.most[number]} GPUs of shares "
        + ", ".join(f"{share:g} ({kind})" for share, kind in zip(covers.shares[number], KINDS, strict=True))
        + f", {covers.low[number]} to {covers.high[number]} layers"
        for number in range(2)
    ]
    return lp_text(program, rows, columns, legend + items_legend(own, first=2))


def trail_rows(patterns: SegmentPatterns, classes: int) -> tuple[list[str], list[str]]:
    """Rows and columns of a trail program without a cut."""
    every, gates = range(len(patterns.counts)), range(patterns.gates)
    rows = [f"pattern({one})" for one in every] + [f"gate({gate})" for gate in gates] + ["start", "end"]
    rows += [f"gpus({one})" for one in range(classes)] + ["layers_least", "layers_most"]
    columns = [f"visits({one})" for one in every] + [f"start({one})" for one in every]
    columns += [f"end({gate})" for gate in gates]
    columns += [f"passes({gate},{one})" for gate, one in patterns.arcs.T.tolist()]
    return rows, columns


def patterns_legend(patterns: SegmentPatterns, classes: GpuClasses) -> list[str]:
    members = [f"class {one}: GPUs {', '.join(map(str, gpus))}" for one, gpus in enumerate(classes.members)]
    return members + [
        f"pattern {one}: {' '.join(f'{n} of class {place}' for place, n in enumerate(row) if n)}, "
        f"gate {patterns.gate_of[one]}"
        for one, row in enumerate(patterns.counts.tolist())
    ]


def trail_text() -> str:
    """Two classes of two GPUs, linked inside, and one slow way from the first to the second; the second cut off."""
    classes = GpuClasses(((0, 1), (2, 3)), (0, 1), np.array([[True, True], [False, True]]))
    own = items(((1, 0), 1, 2), ((0, 1), 1, 3))
    patterns = build_patterns(classes, own)
    assert patterns is not None
    built = PathProgram(classes, own, patterns, 6, segments=(3, 3))
    rows, columns = trail_rows(patterns, 2)
    # A solution that goes round in the second class and does not come there.
    (piece,) = np.nonzero(patterns.counts[:, 1])
    built._add_subtour_cut(
        piece, np.unique(patterns.gate_of[piece]), np.ones(len(patterns.counts), dtype=bool), np.array([1])
    )
    return lp_text(
        built._program, [*rows, "segments", "reached(1,1)"], columns,
        items_legend(own) + patterns_legend(patterns, classes),
    )  # fmt: skip


def frontier_instance(links: np.ndarray) -> ProblemInstance:
    """Three layers on alike GPUs; a second GPU of a segment halves its time, the third layer takes longest."""

    def value(kinds: tuple[int, ...], count: int) -> float:
        return len(kinds) * {1: 100.0, 2: 50.0, 3: 20.0}[count]

    return ProblemInstance(3, (0,) * len(links), links, 2, value)


def choice_legend(number: int, choice: Choice, gpus: int) -> str:
    lines = ", ".join(f"{fixed_s:.6g} + {layer_s:.6g} a layer" for fixed_s, layer_s in choice.lines)
    return f"choice {number}: {gpus} GPUs, {choice.low} to {choice.high} layers, the largest of {lines} s"


def tiers_text() -> str:
    """Two pods of two nodes of three GPUs: fast links within a node, slower ones within a pod, the slowest beyond."""
    node = np.arange(12) // 3
    links = np.where(node[:, None] // 2 == node // 2, 200.0, 100.0)
    instance = frontier_instance(np.where(node[:, None] == node, 500.0, links))
    table = build_table(instance, SearchClock.start(60.0))
    assert table is not None
    programs = LatencyPrograms(instance, COSTS, table, SearchClock.start(60.0))
    program: LatencyProgram = caught(
        SecondsProgram, "solve_to_gap", lambda: programs.within(1, 1).min_latency(20.0)
    )
    entries = program._entries
    root = max((sort for sort, _, _ in entries), key=lambda sort: sort.level)
    sorts = {id(sort): f"s{number}" for number, sort in enumerate(root.with_descendants)}
    sizes = table.counts.sum(axis=1)
    columns: dict[int, str] = {program._used[at]: f"u({sorts[at]})" for at in program._used}
    rows = []
    for number, (_, choice, column) in enumerate(entries):
        columns |= {column: f"n({number})", column + 1: f"y({number})"}
        if len(choice.lines) > 1:
            columns[column + 2] = f"z({number})"
            rows += [f"seconds({number},{line})" for line in range(len(choice.lines))]
    rows += ["layers"]
    for number in range(len(entries)):
        rows += [f"least({number})", f"most({number})"]
    rows += [f"level({level})" for level in range(root.level)]
    for sort in root.with_descendants:
        inside = {id(part) for part in sort.with_descendants}
        most = max(sizes[choice.multiset] for at, choice, _ in entries if id(at) in inside)
        rows.append(f"gpus({sorts[id(sort)]})")
        rows += [f"sets({sorts[id(sort)]},{k})" for k in range(2, most + 1) if sort.fleet[0] % k]
        rows += [f"inside({sorts[id(one)]})" for one in (sort.parts if sort is not root else ())]
    rows.append("segments")
    legend = [
        f"{sorts[id(sort)]}: {sort.count} components of {sort.fleet[0]} GPUs"
        for sort in root.with_descendants
    ]
    legend += [
        f"{choice_legend(number, choice, sizes[choice.multiset])}, within {sorts[id(sort)]}"
        for number, (sort, choice, _) in enumerate(entries)
    ]
    return lp_text(program, rows, [columns[place] for place in range(len(columns))], legend)


def trails_text() -> str:
    """Four GPUs in a line of links that all differ."""
    links = np.zeros((4, 4))
    links[[0, 1, 2], [1, 2, 3]] = [500.0, 400.0, 250.0]
    instance = frontier_instance(links)
    table = build_table(instance, SearchClock.start(60.0))
    assert table is not None
    choices = [one for one in Choices(table, COSTS).at(20.0) if len(table.multisets[one.multiset]) == 1]
    fast = links > 0
    np.fill_diagonal(fast, True)
    component = Component(np.arange(4), fast, False)
    told: list[tuple[GpuClasses, SegmentPatterns]] = []
    whole = path_latency._LatencyPathProgram.__init__

    def begin(self: Any, merged: GpuClasses, own: Items, patterns: SegmentPatterns, *rest: Any) -> None:
        told.append((merged, patterns))
        whole(self, merged, own, patterns, *rest)

    with patch.object(path_latency._LatencyPathProgram, "__init__", begin):
        program = caught(
            SecondsProgram,
            "solve_to_gap",
            lambda: path_latency.min_path_latency(
                instance, COSTS, table, choices, component, 1000.0, SearchClock.start(60.0)
            ),
        )
    ((merged, patterns),) = told
    rows, columns = trail_rows(patterns, len(merged.members))
    columns += [f"y({one})" for one in range(len(patterns.counts))]
    for one, item in enumerate(patterns.item.tolist()):
        lines = len(choices[item].lines)
        if lines > 1:
            columns.append(f"z({one})")
            rows += [f"seconds({one},{line})" for line in range(lines)]
        rows += [f"least({one})", f"most({one})"]
    legend = [choice_legend(number, choice, 1) for number, choice in enumerate(choices)]
    return lp_text(program, [*rows, "layers"], columns, legend + patterns_legend(patterns, merged))


PROGRAMS: dict[str, tuple[ModuleType, Callable[[], str]]] = {
    "search-packing": (packing, packing_text),
    "search-covers": (covers_packing, covers_text),
    "search-trail": (path_program, trail_text),
    "frontier-tiers": (tiers_program, tiers_text),
    "frontier-trails": (path_latency, trails_text),
}
"""Whole programs, by golden file, with the module that builds each."""


def table_of(text: str) -> dict[str, str]:
    """Formula by row of the first table of rows in a text, both without backticks."""
    found = {}
    for line in text.split(HEADER, 1)[1].splitlines()[1:]:
        if not line.startswith("|"):
            break
        name, formula = (cell.strip() for cell in line.strip("|").replace("`", "").split("|"))
        found[name] = formula
    return found


def documented(module: ModuleType) -> dict[str, str]:
    """The rows of a program in the document: of the table below the first word of its path from the core on."""
    path = Path(module.__file__ or "").relative_to(ROOT / "torchsplit_core").as_posix()
    return table_of(DOCS.read_text(encoding="utf-8").split(f"`{path}`", 1)[1])


def rows_in(golden: str) -> set[str]:
    """The names of the rows of an LP text, without what they are counted by."""
    return set(
        re.findall(r"^ (\w+)(?:\([^)]*\))?:", golden.split("\nst\n", 1)[1].split("\nbounds\n", 1)[0], re.M)
    )
