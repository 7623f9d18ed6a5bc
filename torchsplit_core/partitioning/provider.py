"""From a traced model and its profile to ranked cuts into stages.

The request has a node for every operation and input of the graph, with the profile's share of an end-to-end time; units
of the preparation and users of memory that is written in place are groups. Its candidates have three sources: region
cuts (one value crosses besides the side-band), prefixes of topological orders, and all ideals if they are few.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from torchsplit_core.graph import (
    PreparedGraph,
    RegionTree,
    TorchGraph,
    annotate_with_profiling_data,
    prepare,
    region_tree,
)
from torchsplit_core.graph.preparation.prepare import WEIGHT_KINDS
from torchsplit_core.partitioning.blocks.block_graph import contract
from torchsplit_core.partitioning.blocks.colocation import colocation_groups
from torchsplit_core.partitioning.blocks.cut_sizes import CutSizes
from torchsplit_core.partitioning.blocks.stage_costs import batch_sensitivities, stage_times
from torchsplit_core.partitioning.blocks.stage_memory import StageMemory
from torchsplit_core.partitioning.candidates import (
    make_candidate,
    objective_value,
    rank_distinct,
    stage_sets,
)
from torchsplit_core.partitioning.search.heterogeneous_dp import best_prefix_placements
from torchsplit_core.partitioning.search.prefix_dp import best_prefix_cuts
from torchsplit_core.partitioning.solve import solve_partition
from torchsplit_core.partitioning.verify import RELATIVE, verify_outcome
from torchsplit_core.values import (
    GraphEdge,
    InputFault,
    PartitionCandidate,
    PartitionDevices,
    PartitionNode,
    PartitionOutcome,
    PartitionRequest,
    Profile,
    ProfileRow,
    Progress,
    SolverOptions,
    at_first_length,
    ignore_progress,
    stage_shares,
)
from torchsplit_core.values.partition import Objective

_TIGHTENINGS = 6  # tries with less memory for weights if activations do not fit beside them


class PartitionProvider:
    """Costs, regions and candidates of one model.

    Raises InputFault if profile and graph differ in architecture, or if the profile has no row of the whole model or no
    shares of nodes.
    """

    def __init__(self, graph: TorchGraph, profile: Profile) -> None:
        self.graph = annotate_with_profiling_data(graph, profile)
        self.profile = profile
        self.row = reference_row(profile, graph.traced_batch)
        if not any(node.kind == "op" for node in graph.nodes):
            problem = "has no operations, so there is nothing to cut"
            raise InputFault(profile.source, problem, "Choose a model that computes something.")
        if not any(node.time_share > 0 for node in profile.nodes):
            raise InputFault(
                f"profile of {profile.source}",
                "has no time shares of operations, which a cut needs",
                "Profile the model again.",
            )
        self.prepared: PreparedGraph = prepare(self.graph)
        names = [node.id for node in profile.nodes]
        shares = stage_shares(profile.nodes, [(name,) for name in names], self.row.batch_size)
        self._time_ms = {name: share * self.row.batch_ms for name, share in zip(names, shares, strict=True)}

    @cached_property
    def memory(self) -> StageMemory:
        """Memory of stages of the graph."""
        return StageMemory(self.graph)

    @cached_property
    def cut_sizes(self) -> CutSizes:
        """Bytes across cuts of the graph at any batch size."""
        return CutSizes(self.graph)

    @cached_property
    def regions(self) -> RegionTree:
        """The region tree of the prepared graph, without side-band."""
        return region_tree(self.prepared)

    def time_ms(self, node_id: str) -> float:
        """A node's share of the reference row's batch time; 0 if it was not profiled."""
        return self._time_ms.get(node_id, 0.0)

    def request(
        self,
        stages: int,
        top_k: int = 5,
        link_gb_per_s: float | None = None,
        memory_bytes: int | None = None,
        time_limit_s: float = 60.0,
        objective: Objective = "throughput",
        time_factors: tuple[float, ...] | None = None,
    ) -> PartitionRequest:
        """The partition request of the whole graph. A weight counts for its first reader only.

        So the sum of a stage's memory never exceeds its real need, and the bound and an infeasible verdict hold for the
        real memory too.
        """
        groups = colocation_groups(self.graph, self.prepared)
        charged: set[str] = set()
        nodes: list[PartitionNode] = []
        edges: list[GraphEdge] = []
        for node in self.graph.nodes:
            if node.kind not in ("op", "input"):
                continue
            weights = [i for i in dict.fromkeys(node.inputs) if self.graph.by_id[i].kind in WEIGHT_KINDS]
            fresh = sum(self.graph.by_id[i].output_bytes for i in weights if i not in charged)
            charged.update(weights)
            time_ms, group = self.time_ms(node.id), groups.get(node.id)
            nodes.append(PartitionNode(node.id, time_ms, fresh, node.output_bytes, group))
            edges.extend(
                GraphEdge(i, node.id)
                for i in dict.fromkeys(node.inputs)
                if self.graph.by_id[i].kind in ("op", "input")
            )
        return PartitionRequest(
            nodes=tuple(nodes),
            edges=tuple(edges),
            devices=PartitionDevices(stages, memory_bytes, link_gb_per_s, time_factors),
            top_k=top_k,
            solver=SolverOptions(time_limit_s),
            objective=objective,
        )

    def region_candidates(self, request: PartitionRequest) -> tuple[PartitionCandidate, ...]:
        """The best cuts at cut points of the whole model, exact among these by a dynamic program."""
        blocks = contract(request)
        segment = self._segments()
        of_block = [max(segment[request.nodes[i].id] for i in block.nodes) for block in blocks.blocks]
        for source, reader in sorted(blocks.edges):  # a group may span cut points
            of_block[reader] = max(of_block[reader], of_block[source])
        order = sorted(range(len(blocks.blocks)), key=lambda b: (of_block[b], b))
        ends = frozenset(i for i in range(1, len(order)) if of_block[order[i - 1]] < of_block[order[i]])
        if request.objective == "latency" or request.devices.time_factors is not None:
            placements = best_prefix_placements(blocks, order, ends)[: request.top_k]
            return tuple(self.with_costs(make_candidate(blocks, parts, on)) for _, parts, on in placements)
        cuts = best_prefix_cuts(blocks, order, request.top_k, ends)
        return tuple(self.with_costs(make_candidate(blocks, parts)) for _, parts in cuts)

    def candidates(
        self, request: PartitionRequest, progress: Progress = ignore_progress
    ) -> tuple[PartitionCandidate, ...]:
        """The candidates of `solve`, best first; empty if there are none."""
        return self.solve(request, progress).candidates

    def solve(self, request: PartitionRequest, progress: Progress = ignore_progress) -> PartitionOutcome:
        """Candidates of all sources with real memory peaks, and the bound of `solve_partition`.

        The best region cut is always among two or more. With a memory limit, only candidates whose weights and
        activations fit are returned.
        """
        outcome = solve_partition(request, progress)
        if outcome.status in ("infeasible", "timeout") and not outcome.candidates:
            return self._with_provenance(request, outcome)
        bound = outcome.bound_ms or 0.0
        tightened = request
        for _ in range(_TIGHTENINGS):
            costed = [self.with_costs(candidate) for candidate in outcome.candidates]
            regions = self.region_candidates(tightened)
            fitting = [c for c in (*costed, *regions) if self._fits(request, c)]
            if fitting or not costed:
                break
            tightened = self._tighten_memory(request, tightened, costed[0])
            if not (tightened.devices.memory_bytes or 0) > 0:
                break
            outcome = solve_partition(tightened, progress)
        if not fitting:
            message = "No cut whose weights and activations fit the memory together was found."
            return self._with_provenance(
                request,
                replace(outcome, status="timeout", candidates=(), gap=None, bound_ms=bound, message=message),
            )
        objective = request.objective
        chosen = rank_distinct(fitting, request.top_k, objective)
        best_region = rank_distinct((c for c in regions if self._fits(request, c)), 1, objective)
        if best_region and len(chosen) > 1 and not {*map(stage_sets, regions)} & {*map(stage_sets, chosen)}:
            chosen = (*chosen[: request.top_k - 1], *best_region)
        value = objective_value(chosen[0], objective)
        bound = min(bound, value)
        gap = (value - bound) / value if value > 0 else 0.0
        final = replace(
            outcome,
            status="optimal" if gap <= RELATIVE else "feasible",
            candidates=chosen,
            bound_ms=bound,
            gap=gap,
            message="",
        )
        verify_outcome(request, final)
        return self._with_provenance(request, final)

    def _with_provenance(self, request: PartitionRequest, outcome: PartitionOutcome) -> PartitionOutcome:
        return replace(
            outcome,
            source=self.profile.source,
            architecture_hash=self.graph.architecture_hash,
            devices=request.devices,
            largest_batch=self.graph.largest_batch,
        )

    def _fits(self, request: PartitionRequest, candidate: PartitionCandidate) -> bool:
        limit = request.devices.memory_bytes
        return limit is None or max(candidate.peak_memory_bytes) <= limit

    def _tighten_memory(
        self, request: PartitionRequest, tried: PartitionRequest, failed: PartitionCandidate
    ) -> PartitionRequest:
        """Less memory for weights, by the last best candidate's excess over the real limit."""
        excess = max(failed.peak_memory_bytes) - (request.devices.memory_bytes or 0)
        weight_bytes = (tried.devices.memory_bytes or 0) - max(excess, 1)
        return replace(request, devices=replace(request.devices, memory_bytes=weight_bytes))

    def _segments(self) -> dict[str, int]:
        """For every operation and input the number of whole-model cut points before it.

        Side-band values are as late as their first reader allows, unused results right after what they read.
        """
        units = self.prepared
        cuts = frozenset(self.regions.cut_points)
        after_cuts: dict[str, int] = {}
        passed = 0
        for name in self.regions.order:  # a cut point is the last before its cut
            after_cuts[name] = passed
            passed += name in cuts
        readers: dict[str, list[str]] = {}
        for edge in units.edges:
            readers.setdefault(edge.source, []).append(edge.target)
        for unit in reversed(units.units):
            if unit.id in units.sideband:
                after_cuts[unit.id] = min((after_cuts[r] for r in readers.get(unit.id, ())), default=0)
        segment = {member: after_cuts[unit.id] for unit in units.units for member in unit.members}
        for name in units.dead:
            segment[name] = max(
                (segment[i] for i in self.graph.by_id[name].inputs if i in segment), default=0
            )
        return segment

    def with_costs(self, candidate: PartitionCandidate) -> PartitionCandidate:
        """The candidate with its stages' real peaks, their times at every profiled batch size, and the growth of its
        cuts' bytes with the batch."""
        times = stage_times(self.profile, self.row, candidate.stages)
        fixed, per_request = self.cut_sizes.split(candidate.stages)
        return replace(
            candidate,
            peak_memory_bytes=tuple(map(self.memory.peak_bytes, candidate.stages)),
            weight_bytes=tuple(map(self.memory.weight_bytes, candidate.stages)),
            times_ms=times,
            batch_sensitivity=batch_sensitivities(times),
            cut_bytes_fixed=fixed,
            cut_bytes_per_request=per_request,
        )


def reference_row(profile: Profile, batch: int) -> ProfileRow:
    """The measured row of the whole model at the batch size nearest to `batch`; else the row of least time.

    Only rows of the profile's first sequence length, as the nodes' shares are. Raises InputFault if the profile has no
    row of the whole model.
    """
    whole = [row for row in at_first_length(profile).rows if row.stage == "whole"]
    if not whole:
        raise InputFault(
            f"profile of {profile.source}", "has no row of the whole model", "Profile the model again."
        )
    measured = [row for row in whole if row.basis == "measured"]
    if measured:
        return min(measured, key=lambda row: (abs(row.batch_size - batch), row.processes, row.batch_ms))
    return min(whole, key=lambda row: row.batch_ms)


def solve_partitioning_problem(
    graph: TorchGraph,
    profile: Profile,
    *,
    stages: int = 2,
    top_k: int = 5,
    link_gb_per_s: float | None = None,
    memory_bytes: int | None = None,
    time_limit_s: float = 60.0,
    objective: Objective = "throughput",
    time_factors: tuple[float, ...] | None = None,
    progress: Progress = ignore_progress,
) -> PartitionOutcome:
    """Cut a model into at most `stages` stages: ranked candidates and a proven bound for the best.

    Stages list every operation and input exactly once; parameters follow the operations that read them. At the traced
    batch, `cut_bytes` are the bytes a batch from each stage to later ones (with the side-band), and `peak_memory_bytes`
    weights and live activations. `cut_bytes_fixed` and `cut_bytes_per_request` give the former at any batch (see
    blocks.cut_sizes). Raises InputFault as `PartitionProvider` and `solve_partition` do.
    """
    provider = PartitionProvider(graph, profile)
    return provider.solve(
        provider.request(stages, top_k, link_gb_per_s, memory_bytes, time_limit_s, objective, time_factors),
        progress,
    )
