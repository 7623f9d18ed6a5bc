"""The order of the parts in which the worst model loses least, then all models together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count

from torchsplit_core.transition.parts import ChangePart
from torchsplit_core.transition.rates import Losses, Running

MOST_TRIES = 30_000
"""Parts put behind begun orders by the exact search: enough for 8 parts in any case, and for most changes of twice as
many, since orders that lose more than the greedy one are not followed."""
MOST_PARTS = 20
"""Parts above which those tries would be spent in vain: the greedy order stands."""
_CLOSE = 1e-9
"""Model-seconds that count as none: rounding."""

Value = tuple[float, float]
"""The worst model's loss and that of all together, rounded: sums in another order differ in their last digits."""
_Loss = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """Parts in order, and the model-seconds below demand of each model. `exact`: no order has a better `value`.

    `tries` were spent on the search.
    """

    parts: tuple[ChangePart, ...]
    lost: dict[str, float]
    exact: bool
    tries: int = 0

    @property
    def value(self) -> Value:
        """To compare orders."""
        return _value(tuple(self.lost.values()))


def best_order(
    parts: Sequence[ChangePart], losses: Losses, running: Running, most_tries: int = MOST_TRIES
) -> Order:
    """The best order of the parts, from the tenants that run; the greedy one where the tries do not suffice."""
    walk = _Walk(parts, losses, running)
    greedy = walk.greedy()
    if greedy.value == (0.0, 0.0):
        return Order(greedy.parts, greedy.lost, exact=True)
    if len(parts) > MOST_PARTS:
        return greedy
    return walk.exact(greedy, most_tries) or replace(greedy, tries=most_tries)


def evaluate(parts: Sequence[ChangePart], losses: Losses, running: Running) -> Order:
    """This very order."""
    total, shortfalls = dict.fromkeys(losses.demands, 0.0), losses.shortfalls(running)
    for part in parts:
        lost, running, shortfalls = losses.over(part.steps, running, shortfalls)
        for model, loss in lost.items():
            total[model] += loss
    return Order(tuple(parts), total, exact=False)


class _Walk:
    """Orders as paths through sets of finished parts: a set determines what runs then, so also what each next part
    loses."""

    def __init__(self, parts: Sequence[ChangePart], losses: Losses, running: Running) -> None:
        self.parts, self.losses = tuple(parts), losses
        self.index = {model: number for number, model in enumerate(losses.demands)}
        self.states = {0: (running, losses.shortfalls(running))}
        self.none = (0.0,) * len(self.index)

    def follow(self, done: int, index: int, total: _Loss) -> tuple[int, _Loss]:
        """The set and the losses after one more part."""
        running, shortfalls = self.states[done]
        lost, running, shortfalls = self.losses.over(self.parts[index].steps, running, shortfalls)
        self.states.setdefault(done | 1 << index, (running, shortfalls))
        sums = list(total)
        for model, loss in lost.items():
            sums[self.index[model]] += loss
        return done | 1 << index, tuple(sums)

    def greedy(self) -> Order:
        """Each time the part after which the worst model has lost least; of equals what leaves least missing."""
        done, total = 0, self.none
        chosen: list[int] = []
        while len(chosen) < len(self.parts):
            options = []
            for index in range(len(self.parts)):
                if not done >> index & 1:
                    after, lost = self.follow(done, index, total)
                    options.append((_value(lost), sum(self.states[after][1].values()), index, lost))
            *_, index, total = min(options)
            chosen.append(index)
            done |= 1 << index
            self.states = {0: self.states[0], done: self.states[done]}
        return self._order(chosen, total, exact=len(self.parts) <= 1)

    def exact(self, greedy: Order, most_tries: int) -> Order | None:
        """A path of the least worst loss: best first, since losses only grow; None where it takes too many tries."""
        full, tick, tries = (1 << len(self.parts)) - 1, count(), 0
        heap: list[tuple[Value, int, int, _Loss, tuple[int, ...]]] = [
            ((0.0, 0.0), next(tick), 0, self.none, ())
        ]
        settled: dict[int, list[_Loss]] = {}
        while heap:
            _, _, done, total, path = heappop(heap)
            if done == full:
                return replace(self._order(path, total, exact=True), tries=tries)
            others = settled.setdefault(done, [])
            if any(all(a <= b + _CLOSE for a, b in zip(other, total, strict=True)) for other in others):
                continue
            others.append(total)
            for index in range(len(self.parts)):
                if done >> index & 1:
                    continue
                tries += 1
                if tries > most_tries:
                    return None
                after, lost = self.follow(done, index, total)
                if _value(lost) <= greedy.value:
                    heappush(heap, (_value(lost), next(tick), after, lost, (*path, index)))
        return None

    def _order(self, path: Sequence[int], total: _Loss, *, exact: bool) -> Order:
        lost = dict(zip(self.index, total, strict=True))
        return Order(tuple(self.parts[index] for index in path), lost, exact)


def _value(lost: _Loss) -> Value:
    return round(max(lost, default=0.0), 6), round(sum(lost), 6)
