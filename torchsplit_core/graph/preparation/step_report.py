"""Report of the preparation: what happened to every node, and the effect of each step on units, cut points, regions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from torchsplit_core.graph.preparation.prepare import flow_nodes, join_constants, live_nodes, prepare
from torchsplit_core.graph.preparation.prepared import PreparedGraph
from torchsplit_core.graph.preparation.steps import ALL_STEPS, STEPS, PreparationStep, StepName, chosen_steps
from torchsplit_core.graph.regions import region_tree
from torchsplit_core.graph.torch_graph import TorchGraph

Became: TypeAlias = Literal["kept", "dead", "folded", "fused", "charged", "side-band"]

STEP_OF: Mapping[Became, StepName] = {
    "dead": "dead",
    "folded": "constants",
    "fused": "aliases",
    "charged": "weights",
    "side-band": "side-band",
}
"""The step that causes each fate; "kept": no step."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What happened to a node, and the units it went to.

    "folded" and "fused": the unit it joined. "charged": all units that read the weight. "dead": none. "kept": a unit of
    its own, not named. "side-band": a unit shipped beside every cut, not named. `beside`: its unit, joined or its own,
    is in the side-band.
    """

    became: Became
    to: tuple[str, ...] = ()
    beside: bool = False


# Shared by all nodes: a million of them would fill the memory.
_DEAD, _KEPT, _SIDEBAND = Fate("dead"), Fate("kept"), Fate("side-band", beside=True)


@dataclass(frozen=True, slots=True)
class StepReport:
    """The graph after a step and those before it; None: the graph as traced.

    `units`, `edges`: of the units that cuts divide. `cut_points`: of the whole model. `regions`: single-entry
    single-exit ones of at least two units. `cut_points_without`: with all steps of the report but this one. `touched`:
    the nodes changed by the step, in execution order, each with the units it went to (see `Fate`).
    """

    step: PreparationStep | None
    units: int
    edges: int
    cut_points: int
    regions: int
    cut_points_without: int | None = None
    touched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def fates(prepared: PreparedGraph) -> Mapping[str, Fate]:
    """What happened to every node but the outputs, in execution order. Linear in nodes and their inputs."""
    graph, unit_of, steps = prepared.graph, prepared.unit_of, prepared.steps
    live = live_nodes(graph) if "dead" in steps else graph.by_id.keys()
    flow, constant = flow_nodes(graph, steps, live)
    home = join_constants(graph, flow, constant)
    charged_to: dict[str, list[str]] = {}
    for reader in prepared.units:
        for weight in reader.weights:
            charged_to.setdefault(weight, []).append(reader.id)
    fate_of: dict[str, Fate] = {}
    for name in graph.topological_ids:
        kind = graph.by_id[name].kind
        if kind == "output":
            continue
        unit = unit_of.get(name)
        if name not in live:
            fate_of[name] = _DEAD
        elif unit is None:
            fate_of[name] = Fate("charged", tuple(charged_to.get(name, ())))
        elif unit != name:
            folded = home[name] != name
            fate_of[name] = Fate("folded" if folded else "fused", (unit,), unit in prepared.sideband)
        else:
            fate_of[name] = _SIDEBAND if name in prepared.sideband else _KEPT
    return fate_of


def preparation_report(graph: TorchGraph, steps: Collection[StepName] = ALL_STEPS) -> tuple[StepReport, ...]:
    """The graph as traced, and after each of these steps. Prepares the graph twice a step.

    Raises InputFault as `prepare` does.
    """
    chosen = chosen_steps(steps)
    rows = [_step_report(graph, ())]
    for count, name in enumerate(chosen, 1):
        others = [step for step in chosen if step != name]
        rows.append(
            replace(
                _step_report(graph, chosen[:count]),
                step=next(step for step in STEPS if step.name == name),
                cut_points_without=len(region_tree(prepare(graph, others)).cut_points),
            )
        )
    return tuple(rows)


def _step_report(graph: TorchGraph, steps: Sequence[StepName]) -> StepReport:
    """The graph after these steps, and the nodes changed by the last one."""
    prepared = prepare(graph, steps)
    tree = region_tree(prepared)
    return StepReport(
        step=None,
        units=len(prepared.main_ids),
        edges=len(prepared.main_edges),
        cut_points=len(tree.cut_points),
        regions=sum(region.count > 1 for region in tree.regions),
        touched={
            name: fate.to
            for name, fate in (fates(prepared).items() if steps else ())
            if STEP_OF.get(fate.became) == steps[-1]
        },
    )
