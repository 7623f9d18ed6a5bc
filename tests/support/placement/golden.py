"""The constraint families of the literal placement program as LP text: what the golden files hold.

`python -m tools.write_placement_lps` writes them anew after a change of the formulation.
"""

import io

import pyomo.environ as pyo
from pyomo.repn.plugins.lp_writer import LPWriter

from tests.support.paths import ROOT
from tests.support.placement.requests import COEFFICIENTS
from torchsplit_core.placement.literal.formulation import LiteralProgram, build_program
from torchsplit_core.placement.model.segments import SegmentModel, build_instance
from torchsplit_core.values import LinearThroughput, PlacementGpu, PlacementModel, PlacementRequest

GOLDEN = ROOT / "tests" / "placement" / "golden"
DOCS = ROOT / "docs" / "internals" / "formulations.md"
HEADER = "| family | formula | function |\n"
CONSTANT = "ONE_VAR_CONSTANT"
"""Pyomo's variable for an objective that is a constant."""


def small() -> LiteralProgram:
    """Two layers on an A100 and a T4 that holds one of them; the link back is faster than the one there."""
    gpus = (PlacementGpu("a100", "A100", 80.0), PlacementGpu("t4", "T4", 2.0))
    request = PlacementRequest(
        PlacementModel(2, 4096, 11008, 1.0, 2048, 4), gpus, LinearThroughput(COEFFICIENTS),
        ((0.0, 1.0), (2.0, 0.0)), max_gpus_per_segment=2, communication_efficiency=0.85, units="seed_literal",
    )  # fmt: skip
    return build_program(build_instance(SegmentModel(request)))


def families() -> list[tuple[str, str, str]]:
    """Name, formula and function of each row of the document's table, without backticks."""
    section = DOCS.read_text(encoding="utf-8").split("## Placements", 1)[1]
    return rows_of(section)


def rows_of(text: str) -> list[tuple[str, str, str]]:
    """The rows of the first table with the families' header."""
    found = []
    for line in text.split(HEADER, 1)[1].splitlines()[1:]:
        if not line.startswith("|"):
            break
        name, formula, function = (cell.strip() for cell in line.strip("|").replace("`", "").split("|"))
        found.append((name, formula, function))
    return found


def family_text(name: str) -> str:
    """The rows of one family as LP text, below what the numbers stand for."""
    built = small()
    built.model.end_to_end.deactivate()
    built.model.nothing_sought = pyo.Objective(expr=0.0)
    for item in built.model.component_objects(pyo.Constraint):
        if item.local_name != name:
            item.deactivate()
    stream = io.StringIO()
    LPWriter().write(built.model, stream, symbolic_solver_labels=True)
    rows = "s.t." + stream.getvalue().split("s.t.", 1)[1].replace(f"   1 <= {CONSTANT} <= 1\n", "")
    assert CONSTANT not in rows, f"the program has no row of {name}"
    legend = [
        f"\\ {place}: layers {a.start} to {a.end} on {', '.join(map(str, a.gpus))}: {a.throughput:.6g}\n"
        for place, a in enumerate(built.allocations)
    ]
    return f"{''.join(legend)}\nmin\nobj:\n\n{rows}"
