"""Plans sought beside a search of levels, in a thread: HiGHS leaves it a core.

Contents with the latencies of solutions of the search that are no plans (repairs), and contents changed from the best
plan so far on (slice_contents.py), each as long as the other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol

from torchsplit_core.planning.fractional.slice_contents import ContentPlan, ContentSearch, contents_with
from torchsplit_core.planning.problem.build import Problem

REPAIR_S, MAX_REPAIRS = 0.5, 64
"""Seconds of a program of contents near a solution that is no plan, and the latest of these that wait for one."""


class Levels(Protocol):
    """What a search of levels knows: the level that a plan has reached, and a bound."""

    reached: float
    bound: float


class PlanSearch:
    """Plans above the level reached, sought from the plan `known` on, if any."""

    def __init__(self, problem: Problem, levels: Levels, known: ContentPlan | None = None) -> None:
        self.problem, self.levels = problem, levels
        self.changes = None if known is None else ContentSearch(problem, levels.bound, known, {})
        self.tried: set[tuple[tuple[int, float], ...]] = set()
        """Least shares by case for which contents were sought."""
        self.waiting: deque[dict[int, float]] = deque(maxlen=MAX_REPAIRS)
        self.plans: deque[ContentPlan] = deque()
        self.changed = threading.Condition()
        self.ended = False

    def repair(self, shares: Iterable[dict[int, float]]) -> None:
        """Seek plans with these least shares by case; the latest come first."""
        with self.changed:
            self.waiting.extend(shares)
            self.changed.notify()

    def better(self) -> ContentPlan | None:
        """A plan above the level reached, if there is one."""
        while self.plans:
            plan = self.plans.popleft()
            if plan.level > self.levels.reached:
                return plan
        return None

    def start_from(self, plan: ContentPlan) -> None:
        """Change this plan from now on, if it is the best one."""
        with self.changed:
            if self.changes is None:
                self.changes = ContentSearch(self.problem, self.levels.bound, plan, {})
            elif plan.level > self.changes.best.level:
                self.changes.best, self.changes.failures = plan, 0
            self.changed.notify()

    @contextmanager
    def begun(self, deadline: float) -> Iterator[None]:
        """Seek plans until `deadline` (time.perf_counter)."""
        with ThreadPoolExecutor(1) as executor:
            work = executor.submit(self._work, deadline)
            try:
                yield
            finally:
                with self.changed:
                    self.ended = True
                    self.changed.notify()
            work.result()

    def _work(self, deadline: float) -> None:
        ahead_s = 0.0
        """Of repairs."""
        while time.perf_counter() < deadline:
            with self.changed:
                self.changed.wait_for(lambda: self.ended or self.waiting or self.may_change)
                if self.ended:
                    return
            begun = time.perf_counter()
            if self.waiting and (ahead_s <= 0 or not self.may_change):
                plan = self._repaired(deadline)
                ahead_s += time.perf_counter() - begun
            else:
                plan = None if self.changes is None else self.changes.step(deadline)
                ahead_s -= time.perf_counter() - begun
            if plan is not None and plan.level > self.levels.reached:
                self.start_from(plan)
                self.plans.append(plan)

    @property
    def may_change(self) -> bool:
        """Whether a plan is known and not yet changed in vain often enough."""
        return self.changes is not None and not self.changes.is_exhausted

    def _repaired(self, deadline: float) -> ContentPlan | None:
        least = self.waiting.pop()
        key = tuple(sorted(least.items()))
        if key in self.tried:
            return None
        self.tried.add(key)
        seconds = min(REPAIR_S, deadline - time.perf_counter())
        return contents_with(self.problem, least, self.levels.reached, self.levels.bound, seconds)
