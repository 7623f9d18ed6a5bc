"""Renders a graph as SVG, or as DOT for Graphviz."""

from __future__ import annotations

from typing import Literal, get_args

from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.drawing.scene import Scene, layout_scene
from torchsplit_core.drawing.scene_dot import scene_dot
from torchsplit_core.drawing.svg import render_svg
from torchsplit_core.drawing.view import MOST_ITEMS, build_view, initially_open
from torchsplit_core.graph import ALL_STEPS, DominanceInformation, TorchGraph, prepare, region_tree
from torchsplit_core.graph.dot import dominance_dot, regions_dot
from torchsplit_core.graph.preparation.steps import chosen_steps
from torchsplit_core.values import InputFault, quoted, suggestion

DrawingKind = Literal["dataflow", "dominators", "post-dominators", "regions"]


def render_drawing(
    graph: TorchGraph,
    suffix: str,
    what: DrawingKind = "dataflow",
    opened: tuple[str, ...] = (),
    *,
    dark: bool = False,
    without: tuple[str, ...] = (),
) -> str:
    """The text of a `.svg` or `.dot` file.

    `opened` are the paths of modules to open in addition to those of the explorer's first view ("all": every module).
    `without` are preparation steps to skip for dominance and regions; the dataflow is drawn as traced.
    Raises InputFault for an unknown suffix, drawing kind, module or step, dominance or regions as SVG, `without` with
    the dataflow, and more than `MOST_ITEMS` boxes.
    """
    if suffix not in (".svg", ".dot"):
        raise InputFault(
            "-o",
            f"names a file with the suffix {quoted(suffix)}" if suffix else "names a file without a suffix",
            "End its name in .svg or .dot.",
        )
    if what not in get_args(DrawingKind):
        raise InputFault(
            "--what",
            f"is {quoted(what)}, not a known drawing",
            suggestion(what, get_args(DrawingKind), "drawings"),
        )
    if what != "dataflow":
        if suffix == ".svg":
            raise InputFault(
                "-o", f"asks for an SVG of the {what}, which only Graphviz draws", "Write a .dot file."
            )
        left_out = chosen_steps(without)
        prepared = prepare(graph, [step for step in ALL_STEPS if step not in left_out])
        if what == "regions":
            return regions_dot(region_tree(prepared))
        dominance = DominanceInformation((prepared.main_ids, prepared.main_edges))
        return dominance_dot(dominance, post=what == "post-dominators")
    if without:
        raise InputFault(
            "--without",
            "has no effect on the dataflow, which is drawn as traced",
            "Add --what regions or --what dominators.",
        )
    hierarchy = Hierarchy(graph)
    scene = _scene(hierarchy, opened)
    return render_svg(scene, dark=dark) if suffix == ".svg" else scene_dot(hierarchy, scene)


def _scene(hierarchy: Hierarchy, opened: tuple[str, ...]) -> Scene:
    groups = initially_open(hierarchy)
    if opened == ("all",):
        groups = frozenset(hierarchy.groups)
    elif opened:
        paths = {group.path: name for name, group in hierarchy.groups.items() if group.kind == "module"}
        missing = next((path for path in opened if path not in paths), None)
        if missing is not None:
            known = sorted(path for path in paths if path)
            raise InputFault(
                "--open", f"unknown module {quoted(missing)}", suggestion(missing, known, "modules")
            )
        groups = groups.union(*(hierarchy.enclosing_groups(paths[path]) for path in opened))
    shown = build_view(hierarchy, groups)
    if len(shown.items) > MOST_ITEMS:
        raise InputFault(
            "--open",
            f"makes a drawing of {len(shown.items)} boxes, more than {MOST_ITEMS}",
            "Open fewer modules.",
        )
    return layout_scene(hierarchy, shown)
