"""Closes the gap of a contiguous pipeline from both sides: a better cut, or a proof that there is none.

At a load U, the windows (`cut_windows`) either prove that no pipeline has a load of at most U, or leave a kernel
(`kernel`) that all such pipelines share; a search of all its ideals (`ideal_dp`) finds the best of them or proves that
there is none. U is

1. the best load so far: a complete search of its kernel proves the optimum;
2. after a search near the best pipeline (`neighbourhood_search`), the better load that it found;
3. bisected between the bound and the best: every proof raises the bound, every pipeline lowers the best; if neither
   comes in time, U was too high for a proof.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, field

from torchsplit_core.partitioning.blocks.block_graph import BlockGraph
from torchsplit_core.partitioning.blocks.topological_orders import topological_orders
from torchsplit_core.partitioning.search.cut_windows import MOST_BLOCKS, CutBounds, CutWindows, open_windows
from torchsplit_core.partitioning.search.ideal_dp import IdealResult, best_ideal_cuts
from torchsplit_core.partitioning.search.kernel import Kernel, kernelize
from torchsplit_core.partitioning.search.neighbourhood_search import ValuedCut, improve, minimize_max_load
from torchsplit_core.partitioning.search.prefix_dp import best_prefix_cuts
from torchsplit_core.values import InternalFault

_FEW_IDEALS = 20_000  # searched at once, before any improvement
_RELATIVE_GAP = 1e-4  # relative: bisection ends there
_IMPROVE_SHARE = 0.4  # of the remaining time
_PROOF_SHARE = 0.25
_ORDERS = 12
_ORDERS_SHARE = 0.2  # of the time for improving

Statistics = MutableMapping[str, str | int | float]


@dataclass
class OptimalityGap:
    """State of the search: `bound_ms` below every pipeline, the best pipelines, and whether the best is proven."""

    bound_ms: float
    best_ms: float
    cuts: list[ValuedCut] = field(default_factory=list)
    proved: bool = False

    def add_cuts(self, cuts: Iterable[ValuedCut]) -> None:
        """Add pipelines; the best load falls to theirs."""
        for value, parts in cuts:
            self.cuts.append((value, parts))
            self.best_ms = min(self.best_ms, value)


def close_gap(
    graph: BlockGraph,
    start: ValuedCut | None,
    bound_ms: float,
    max_ideals: int,
    top_k: int,
    deadline: float,
    report: Callable[[float, str], None],
    statistics: Statistics,
) -> OptimalityGap:
    """Search and prove until the deadline. `start`: the best (largest load, parts) so far, None for none.

    Without any pipeline, `proved` means that there is none. `report` gets a share of the work and a line.
    """
    most = graph.total_ms + 2 * sum(source.transfer_ms for source in graph.sources) + 1.0
    gap = OptimalityGap(bound_ms, start[0] if start else most)
    windows = (
        open_windows(graph)
        if len(graph.blocks) > MOST_BLOCKS
        else CutBounds(graph).windows(gap.best_ms, deadline)
    )
    if windows is None:
        if start:
            raise InternalFault(f"a pipeline of {start[0]} ms is said not to exist")
        return OptimalityGap(bound_ms, most, proved=True)
    kernel = kernelize(graph, windows)
    statistics["kernel_blocks"] = len(kernel.graph.blocks)
    report(0.1, f"{len(kernel.graph.blocks)} blocks left that a better pipeline may move")
    if _prove(gap, kernel, gap.best_ms, min(_FEW_IDEALS, max_ideals), top_k, deadline, statistics):
        return gap
    now = time.monotonic()
    _improve(gap, kernel, start, now + _IMPROVE_SHARE * (deadline - now), report, seed=0)
    if start or gap.cuts:
        _bisect(gap, kernel, max_ideals, top_k, deadline, report, statistics)
        if not gap.proved and gap.best_ms - gap.bound_ms > _RELATIVE_GAP * gap.best_ms:
            best = min([*gap.cuts, *([start] if start else [])], key=lambda cut: cut[0])
            _improve(gap, kernel, best, deadline, report, seed=1)
    else:
        _prove(gap, kernel, most, max_ideals, top_k, deadline, statistics)
    return gap


def _prove(
    gap: OptimalityGap,
    kernel: Kernel,
    load_ms: float,
    max_ideals: int,
    top_k: int,
    deadline: float,
    statistics: Statistics,
) -> bool:
    """Search all ideals of a kernel at or below `load_ms`; if complete, record what that proves and return True."""
    result = _ideals(kernel, load_ms, max_ideals, top_k, deadline)
    gap.add_cuts((value, kernel.expand(parts)) for value, parts in result.cuts)
    if not result.complete:
        statistics.setdefault("ideals", f"more than {result.ideals} or out of time")
        return False
    statistics["ideals"] = result.ideals
    if result.cuts or load_ms >= gap.best_ms:
        gap.proved = True
    gap.bound_ms = max(gap.bound_ms, min(load_ms, gap.best_ms))
    return True


def _ideals(kernel: Kernel, load_ms: float, max_ideals: int, top_k: int, deadline: float) -> IdealResult:
    windows = kernel.windows
    return best_ideal_cuts(
        kernel.graph, top_k, load_ms, max_ideals, deadline, times_ms=(windows.low_ms, windows.high_ms)
    )


def _improve(
    gap: OptimalityGap,
    kernel: Kernel,
    start: ValuedCut | None,
    until: float,
    report: Callable[[float, str], None],
    seed: int,
) -> None:
    """Search near the better of `start` and the best cut of a single order of the kernel."""
    now = time.monotonic()
    graph = kernel.graph
    orders: list[tuple[int, ...]] = []
    best: ValuedCut | None = None
    for order in topological_orders(graph, _ORDERS):
        orders.append(order)
        for value, parts in best_prefix_cuts(graph, order, 1, at_most_ms=gap.best_ms):
            if value < gap.best_ms or best is None:
                best = (value, parts)
                gap.add_cuts([(value, kernel.expand(parts))])
        if time.monotonic() > now + _ORDERS_SHARE * (until - now):
            break
    if start and (best is None or start[0] < best[0]):
        best = (start[0], kernel.restrict(start[1]))
    if best is None:
        return
    for value, parts in improve(graph, best, orders, gap.bound_ms, until, seed, minimize_max_load):
        gap.add_cuts([(value, kernel.expand(parts))])
        report(0.2, f"largest load {value:.4g} ms")


def _bisect(
    gap: OptimalityGap,
    kernel: Kernel,
    max_ideals: int,
    top_k: int,
    deadline: float,
    report: Callable[[float, str], None],
    statistics: Statistics,
) -> None:
    """Raise the bound as far as windows prove it, then as far as the ideals of their kernels do."""
    if len(kernel.graph.blocks) > MOST_BLOCKS:
        return
    bounds = CutBounds(kernel.graph)
    at_best = bounds.windows(gap.best_ms, deadline)
    if at_best is None:
        raise InternalFault(f"a pipeline of {gap.best_ms} ms is said not to exist")
    open_at: list[tuple[float, CutWindows]] = [(gap.best_ms, at_best)]
    high = gap.best_ms
    while high - gap.bound_ms > _RELATIVE_GAP * high and time.monotonic() < deadline:
        middle = (gap.bound_ms + high) / 2
        windows = bounds.windows(middle, deadline)
        if windows is None:
            gap.bound_ms = middle
        else:
            high = middle
            open_at.append((middle, windows))
        report(0.5, f"largest load {gap.best_ms:.4g} ms, bound {gap.bound_ms:.4g} ms")
    low_first = sorted(open_at, key=lambda entry: entry[0])
    for load_ms, windows in [open_at[0], *low_first[:-1]]:  # the best itself, then from the bound upwards
        if time.monotonic() > deadline or gap.proved:
            return
        if load_ms <= gap.bound_ms:
            continue
        inner = kernelize(kernel.graph, windows)
        until = time.monotonic() + _PROOF_SHARE * (deadline - time.monotonic())
        composed = Kernel(
            inner.graph,
            tuple(kernel.blocks_of(inner_members) for inner_members in inner.members),
            inner.windows,
        )
        level = min(load_ms, gap.best_ms)
        complete = _prove(gap, composed, level, max_ideals, top_k, until, statistics)
        report(0.8, f"largest load {gap.best_ms:.4g} ms, bound {gap.bound_ms:.4g} ms")
        if not complete and load_ms < open_at[0][0]:
            return  # higher loads have larger kernels
