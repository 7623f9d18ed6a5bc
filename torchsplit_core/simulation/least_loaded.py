"""Which of many servers has the fewest requests, as they come and go."""

from __future__ import annotations

from heapq import heappop, heappush


class LeastLoaded:
    """Requests waiting and in service at each server; outdated heap entries are dropped when they come up.

    Servers from `first_unused` on have had no request yet.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.first_unused = 0
        self.loads: list[int] = []
        self.heap: list[tuple[int, int]] = []

    def add(self, number: int, by: int) -> None:
        self.loads[number] += by
        heappush(self.heap, (self.loads[number], number))

    def least(self) -> int:
        """The first of the servers with the fewest requests."""
        while self.heap and self.loads[self.heap[0][1]] != self.heap[0][0]:
            heappop(self.heap)
        if self.first_unused < self.count and (not self.heap or self.heap[0] > (0, self.first_unused)):
            self.loads.append(0)
            self.first_unused += 1
            return self.first_unused - 1
        return self.heap[0][1]
