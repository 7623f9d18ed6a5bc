"""Continuous shares made as fair as possible: a linear program whose levels are raised one after the other.

| row | formula |
|---|---|
| pool[p] | Σ_u∈p x[u] − Σ_c slices[p,c]·y[c] ≤ slots[p] |
| fleet[g] | Σ_{c∈g} y[c] ≤ GPUs[g] |
| limit[i] | Σ_c taken[i,c]·y[c] ≤ at_most[i], where GPUs are taken in groups |
| stage[c,s] | v[c] − Σ_u∈(c,s) rate(u)/unit(m)·x[u] ≤ 0 |
| served[m] | Σ_c∈m v[c] ≥ the fixed level of the model |
| rising[m] | Σ_c∈m v[c] − t ≥ 0 while the model still rises, t maximised |

With continuous shares a model that has a price cannot rise in any best plan, so it may be held at its level; with whole
slices that would be wrong (see formulation/leximin). Models of a higher tier rise first, up to their demand, and then
all models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.patterns.capacity import FleetCapacity
from torchsplit_core.planning.request.objective import TierGroup, tier_groups, unit_rps
from torchsplit_core.solver.highs import INF, csc_from_entries, load_program, run
from torchsplit_core.values import PlanModel

Vector = NDArray[np.float64]
Flags = NDArray[np.bool_]

PRICE_TOLERANCE = 1e-9
"""Price above which a model cannot rise without another one falling."""

MAX_COEFFICIENT, MIN_COEFFICIENT = 1e12, 1e-8
"""Coefficients beyond which HiGHS rejects a matrix or drops an entry (its limits are 1e15 and 1e-9)."""

RELATIVE_GAP = 1e-7
"""Relative gap at which whole layouts count as optimal."""


@dataclass(frozen=True, slots=True)
class Share:
    """One x[u]: its case and stage, its pool, its rate, and its bounds `least` and `most`."""

    case: int
    stage: int
    pool: int
    rate_rps: float
    least: float = 0.0
    most: float = INF


@dataclass(frozen=True)
class ShareDemand:
    """By model the requests/s for a level of 1, the level above which nothing counts, and the least requests/s.

    The models of a tier group rise together, one group after the other.
    """

    units: Vector
    caps: Vector
    minima: Vector
    tier_groups: Sequence[TierGroup]


def share_demand(specs: Sequence[PlanModel]) -> ShareDemand:
    """The demand of a request's models."""
    units = np.array([unit_rps(spec) for spec in specs])
    caps = np.array([spec.demand_rps if spec.cap_at_demand else np.inf for spec in specs])
    minima = np.array([spec.min_throughput_rps or 0.0 for spec in specs])
    return ShareDemand(units, caps / units, minima, tier_groups(specs))


class OutOfScale(Exception):
    """Rates so far apart that HiGHS would reject the program: another method is needed."""


class ShareProgram:
    """The program for some shares; `owners[c]` is the model of case c, `slots[p]` the fixed slices of a pool.

    With a `capacity`, its layouts add slices to its pools. Raises OutOfScale. Levels are in units of `unit`: HiGHS
    keeps rows to 10⁻⁶, so levels of some hundreds keep enough digits (with levels near 1 its bound of a mixed-integer
    program was 5·10⁻⁶ too low).
    """

    def __init__(
        self,
        demand: ShareDemand,
        owners: Sequence[int],
        shares: Sequence[Share],
        slots: Vector,
        capacity: FleetCapacity | None = None,
        unit: float = 1.0,
    ) -> None:
        self.shares, self.owners, self.slots, self.capacity = shares, owners, slots, capacity
        self.unit, self.tier_groups = unit, demand.tier_groups
        self.units = demand.units * unit
        self.caps: Vector = demand.caps / unit
        self.floors: Vector = demand.minima / self.units
        self.layouts = len(capacity.columns) if capacity is not None else 0
        self.layout_at = len(shares)
        self.case_at = self.layout_at + self.layouts
        self.t = self.case_at + len(owners)
        self.stages: dict[tuple[int, int], int] = {}
        """Rows by (case, stage)."""
        self.highs = self._build_program()

    def raise_levels(self, *, stop_at_price: bool = False) -> tuple[Vector, Flags] | None:
        """Raise all models together, holding those at their cap and those that cannot rise.

        Returns the held levels and the models still rising (`stop_at_price`: before the first cannot rise); None if the
        minima cannot be met.
        """
        floors, rising = self.floors.copy(), np.ones(len(self.units), dtype=bool)
        for tier_group in self.tier_groups:
            rising = np.isin(np.arange(len(self.units)), tier_group.models)
            caps = np.minimum(self.caps, tier_group.cap / self.unit)
            raised = self._raise_group(floors, rising, caps, stop_at_price=stop_at_price)
            if not raised:
                return None
        return floors, rising

    def _raise_group(self, floors: Vector, rising: Flags, caps: Vector, *, stop_at_price: bool) -> bool:
        """Raise the `rising` models until the last is held, or to the first price; False if there is no plan."""
        while True:
            self.set_floors(floors, rising)
            if run(self.highs) != "optimal":
                return False
            if not rising.any():
                return True
            level = self.value(self.t)
            capped = rising & (caps <= level * (1 + 1e-9))
            stuck = rising & (self.prices() > PRICE_TOLERANCE)
            if capped.any():
                floors[capped] = np.maximum(floors[capped], caps[capped] * (1 - 1e-12))
                rising &= ~capped
            elif stop_at_price:
                return True
            elif not stuck.any():
                # Degenerate prices identify no model: all keep their level.
                floors[rising] = np.maximum(floors[rising], level * (1 - 1e-10))
                return True
            else:
                floors[stuck] = np.maximum(floors[stuck], level * (1 - 1e-10))
                rising &= ~stuck

    def set_floors(self, floors: Vector, rising: Flags) -> None:
        """Hold every model at its level; for those rising t is another lower bound."""
        for model in range(len(self.units)):
            self.highs.changeRowBounds(self.served_at + model, float(floors[model]), INF)
            self.highs.changeRowBounds(self.rising_at + model, 0.0 if rising[model] else -INF, INF)
        # Without a rising model nothing bounds t.
        self.highs.changeColBounds(self.t, 0.0, INF if rising.any() else 0.0)

    def value(self, column: int) -> float:
        """A column's value in the last solution."""
        return float(self.highs.getSolution().col_value[column])

    def amounts(self) -> Vector:
        """The shares of the last solution."""
        return self.values()[: len(self.shares)]

    def prices(self) -> Vector:
        """The cost to the others of raising each rising model's level by 1."""
        rows = np.array(self.highs.getSolution().row_dual)
        duals: Vector = np.abs(rows[self.rising_at : self.rising_at + len(self.units)])
        return duals

    def pool_prices(self) -> Vector:
        """The price of a slice by pool."""
        rows = np.array(self.highs.getSolution().row_dual)
        prices: Vector = np.maximum(-rows[: len(self.slots)], 0.0)
        return prices

    def values(self) -> Vector:
        """All columns' values in the last solution."""
        return np.array(self.highs.getSolution().col_value)

    def require(self, shares: Sequence[int], least_rps: float) -> None:
        """Have these shares of one stage give so many requests/s at least."""
        unit = float(self.units[self.owners[self.shares[shares[0]].case]]) if shares else 1.0
        rates = np.array([self.shares[number].rate_rps / unit for number in shares])
        self.highs.addRow(least_rps / unit, INF, len(shares), np.array(shares, dtype=np.int32), rates)

    def drop_pool(self, pool: int, shares: Sequence[int]) -> None:
        """Leave a pool (its row) without slices, and these shares, all that it has, at 0."""
        self.highs.changeRowBounds(pool, -INF, 0.0)
        for column in shares:
            self.highs.changeColBounds(column, 0.0, 0.0)

    def add_pool(self, slots: float, shares: Sequence[Share]) -> tuple[int, list[int]]:
        """Add a pool; its row and the columns of its shares, which start from the last solution."""
        row, first = self.highs.getNumRow(), self.highs.getNumCol()
        self.highs.addRow(-INF, slots, 0, np.zeros(0, dtype=np.int32), np.zeros(0))
        for share in shares:
            rate = share.rate_rps / float(self.units[self.owners[share.case]])
            rows = np.array([row, self.stages[share.case, share.stage]], dtype=np.int32)
            self.highs.addCol(0.0, share.least, share.most, 2, rows, np.array([1.0, -rate]))
        return row, list(range(first, first + len(shares)))

    def _build_program(self) -> Any:
        pools = len(self.slots)
        groups = 0 if self.capacity is None else len(self.capacity.gpus) + len(self.capacity.at_most)
        stages = self.stages
        for share in self.shares:
            stages.setdefault((share.case, share.stage), pools + groups + len(stages))
        self.served_at = pools + groups + len(stages)
        self.rising_at = self.served_at + len(self.units)
        rows = self.rising_at + len(self.units)
        entries: list[tuple[int, int, float]] = []
        for number, share in enumerate(self.shares):
            rate = share.rate_rps / float(self.units[self.owners[share.case]])
            entries += [(share.pool, number, 1.0), (stages[share.case, share.stage], number, -rate)]
        if self.capacity is not None:
            for column, group in enumerate(self.capacity.group_of.tolist()):
                at = self.layout_at + column
                entries.append((pools + group, at, 1.0))
                for pool in np.flatnonzero(self.capacity.slices[:, column]).tolist():
                    entries.append((pool, at, -float(self.capacity.slices[pool, column])))
            first = pools + len(self.capacity.gpus)
            for limit, column in np.argwhere(self.capacity.taken).tolist():
                taken = float(self.capacity.taken[limit, column])
                entries.append((first + limit, self.layout_at + column, taken))
        entries += [(row, self.case_at + case, 1.0) for (case, _), row in stages.items()]
        for case, model in enumerate(self.owners):
            entries += [(self.served_at + model, self.case_at + case, 1.0)]
            entries += [(self.rising_at + model, self.case_at + case, 1.0)]
        entries += [(self.rising_at + model, self.t, -1.0) for model in range(len(self.units))]
        lower, upper = np.full(rows, -INF), np.zeros(rows)
        upper[:pools] = self.slots
        if self.capacity is not None:
            upper[pools : pools + groups] = np.concatenate([self.capacity.gpus, self.capacity.at_most])
        lower[self.served_at :], upper[self.served_at :] = 0.0, INF
        return self._load_program(rows, entries, lower, upper)

    def _load_program(
        self, rows: int, entries: list[tuple[int, int, float]], lower: Vector, upper: Vector
    ) -> Any:
        columns = self.t + 1
        row, column, value = zip(*entries, strict=True)
        sizes = np.abs(value)
        if sizes.max() > MAX_COEFFICIENT or sizes.min() < MIN_COEFFICIENT:
            raise OutOfScale
        matrix = csc_from_entries(value, row, column, (rows, columns))
        cost, least, most = np.zeros(columns), np.zeros(columns), np.full(columns, INF)
        cost[self.t] = -1.0
        least[: len(self.shares)] = [share.least for share in self.shares]
        most[: len(self.shares)] = [share.most for share in self.shares]
        return load_program(
            "planner's program of shares",
            matrix,
            cost,
            columns=(least, most),
            rows=(lower, upper),
            relative_gap=RELATIVE_GAP,
        )
