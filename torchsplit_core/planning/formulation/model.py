"""The planner's program: the Pyomo model and the meaning of its columns. build.py makes it, with rows of
constraints.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.planning.request.objective import has_penalties
from torchsplit_core.planning.timing import MIN_BUILD_S, check_deadline
from torchsplit_core.solver.pyomo_model import ModelSolution, OnSolution, pyo, solve

Mode = Literal["exclusive", "pooled", "concrete"]
"""exclusive: whole slices; pooled: shares summed over equal slices (a relaxation); concrete: shares per slice."""

Pools = dict[tuple[int, str, int | None], list[int]]
"""Uses by (group, profile, slot) that share a capacity."""

MAX_RATE = 1e7
"""Largest rate of a share in units of the level: a model that needs less than 1e-7 of a slice gets 1e-7."""


@dataclass(frozen=True, slots=True)
class SliceUse:
    """A choice on its pool; `slot` numbers the slices of the profile on one GPU, None if pooled.

    `layout`: the only layout of the group with which a co-located member may be on a GPU; None for any.
    """

    choice: Choice
    slot: int | None
    layout: int | None = None


@dataclass(frozen=True)
class Formulation:
    """The Pyomo model with what is needed to read its solution.

    `presence`: co-located members whose presence is modelled per GPU. `value_bound`: a known upper bound of the
    worst-served model's level. `build_deadline` (time.perf_counter) ends building, `build_s` is its duration.
    `on_solution` gets the solver's improving solutions during the solve.
    """

    problem: Problem
    mode: Mode
    model: Any
    slice_uses: tuple[SliceUse, ...]
    stage_uses: dict[tuple[int, int], list[int]]
    presence: tuple[int, ...]
    value_bound: float = float("inf")
    build_deadline: float = float("inf")
    build_s: float = 0.0
    on_solution: OnSolution = None

    def check_deadline(self) -> None:
        """Raises OutOfTime after `build_deadline`."""
        check_deadline(self.build_deadline)

    def solve(self, seconds: float) -> ModelSolution:
        """Solve the model within `seconds`; without a result if passing it to the solver would take longer.

        That takes about as long as building it and cannot be interrupted.
        """
        if self.build_s > max(MIN_BUILD_S, seconds):
            return ModelSolution("unknown", None, None, {}, 0.0)
        fine = has_penalties(self.problem.request.objective)
        return solve(self.model, seconds, fine=fine, on_solution=self.on_solution)

    def rate(self, index: int, scale: float, name: str) -> Any:
        """Counted throughput of a model divided by `scale`, as an expression to be maximised.

        Families stage_rate and demand_cap. If nothing above the scale counts (`name` starts with "level" or "minimum"),
        a rate is cut: to 1 for whole instances, which changes nothing, and to MAX_RATE for shares, to keep huge and
        tiny magnitudes out of one row.
        """
        model, request = self.model, self.problem.request
        parts = []
        cases = [number for number, case in enumerate(self.problem.cases) if case.model == index]
        for number in cases:
            sums = [
                sum(self.stage_terms(number, stage, scale, name).values())
                for stage in range(self.problem.cases[number].stages)
            ]
            if len(sums) == 1:
                parts.append(sums[0])
                continue
            least = pyo.Var(domain=pyo.NonNegativeReals)
            model.add_component(f"v_{name}_{number}", least)
            rows = pyo.ConstraintList()
            model.add_component(f"stage_rate_{name}_{number}", rows)
            for total in sums:
                rows.add(least <= total)
            parts.append(least)
        total = sum(parts)
        spec = request.models[index]
        if not spec.cap_at_demand or name.startswith("minimum"):
            return total
        counted = pyo.Var(bounds=(0, spec.demand_rps / scale))
        model.add_component(f"counted_{name}_{index}", counted)
        model.add_component(f"demand_cap_{name}_{index}", pyo.Constraint(expr=counted - total <= 0))
        return counted

    def rate_after_loss(self, index: int, scale: float, name: str) -> Any:
        """Throughput of a model divided by `scale`, without the instances of the GPU that has most of it.

        Families worst_loss and after_loss. A model runs one case, so its minimum over GPUs of the minimum over stages
        is the minimum over stages of the stage's total minus its largest rate on one GPU.
        """
        model = self.model
        parts = []
        for number in [
            index_of_case for index_of_case, case in enumerate(self.problem.cases) if case.model == index
        ]:
            stages = range(self.problem.cases[number].stages)
            stage_parts = [self.stage_terms(number, stage, scale, name) for stage in stages]
            if not all(stage_parts):
                continue
            worst = pyo.Var(stages, domain=pyo.NonNegativeReals)
            left = pyo.Var(domain=pyo.NonNegativeReals)
            losses, rest = pyo.ConstraintList(), pyo.ConstraintList()
            model.add_component(f"worst_{name}_{number}", worst)
            model.add_component(f"left_{name}_{number}", left)
            model.add_component(f"worst_loss_{name}_{number}", losses)
            model.add_component(f"after_loss_{name}_{number}", rest)
            for stage, terms in enumerate(stage_parts):
                by_gpu: dict[int, list[Any]] = {}
                for use, term in terms.items():
                    by_gpu.setdefault(self.slice_uses[use].choice.group, []).append(term)
                for gpu_terms in by_gpu.values():
                    losses.add(worst[stage] - sum(gpu_terms) >= 0)
                rest.add(left - sum(terms.values()) + worst[stage] <= 0)
            parts.append(left)
        return sum(parts)

    def stage_terms(self, case: int, stage: int, scale: float, name: str) -> dict[int, Any]:
        """The rate of each use of a stage, divided by `scale`; `rate` says when it is cut."""
        cut = float("inf")
        if name.startswith(("level", "minimum", "flow")):
            cut = 1.0 if self.mode == "exclusive" else MAX_RATE
        return {
            use: self._use_term(use, min(cut, rate), scale, f"{name}_{use}")
            for use in self.stage_uses.get((case, stage), [])
            if (rate := self.slice_uses[use].choice.rate_rps / scale) > 0
        }

    def _use_term(self, use: int, rate: float, scale: float, name: str) -> Any:
        """Rate times amount, limited to what the link allows an instance (link_rate)."""
        model, cap = self.model, self.slice_uses[use].choice.cap_rps / scale
        if self.mode != "concrete" or cap >= rate:
            return rate * model.x[use]
        part = pyo.Var(bounds=(0, cap))
        model.add_component(f"linked_{name}", part)
        model.add_component(f"link_rate_{name}", pyo.Constraint(expr=part - rate * model.x[use] <= 0))
        return part

    def penalty(self) -> Any:
        """γ · GiB beyond the slices + separation_weight · separated traffic: what objectives pay (0 without both)."""
        objective = self.problem.request.objective
        total: Any = 0.0
        if objective.memory_violation_penalty:
            gamma = objective.memory_violation_penalty
            if self.mode == "concrete":
                total += gamma * sum(self.model.excess.values())
            else:
                total += gamma * sum(
                    use.choice.excess_gib * self.model.x[number]
                    for number, use in enumerate(self.slice_uses)
                    if use.choice.excess_gib > 0
                )
        if objective.separation_weight > 0:
            total += objective.separation_weight * self.separated_traffic()
        return total

    def separated_traffic(self) -> Any:
        """Bytes of separated soft co-locations and bytes/s of routed ones that leave their GPU."""
        flows = self.problem.colocation_index.flows
        if not hasattr(self.model, "phi"):
            return self.separations()
        return self.separations() + sum(flow.bytes_per_s * self.model.phi[f] for f, flow in enumerate(flows))

    def separations(self) -> Any:
        """Σ bytes_per_request over the soft co-locations and the GPUs that have some but not all of the members."""
        colocation_index = self.problem.colocation_index
        if self.mode == "pooled":
            return 0.0
        if self.problem.colocated:
            return sum(
                colocation_index.separated_bytes(present) * self.model.y[g, number]
                for g, group in enumerate(self.problem.groups)
                for number, layout in enumerate(group.layouts)
                if (present := layout.present_members) is not None
            )
        if not hasattr(self.model, "q"):
            return 0.0
        return sum(
            colocation_index.colocations[k].bytes_per_request * self.model.q[k, g] for k, g in self.model.q
        )
