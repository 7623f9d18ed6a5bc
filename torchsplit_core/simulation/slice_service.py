"""The service of a slice from two measurements of it: one request alone, and as many as it can carry.

A batch of b takes floor + b · per-request milliseconds (Clipper, NSDI '17, and Nexus, SOSP '19, fit the same line):
alone a request takes both, and with work always ready the floor is shared by so many that only the second counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.values import InputFault


@dataclass(frozen=True, slots=True)
class SliceService:
    """A batch whose requests' work adds up to w (1 on the average each) takes `floor_ms` + w · `per_request_ms`."""

    floor_ms: float
    per_request_ms: float

    def batch_ms(self, work: float) -> float:
        """The time of a batch that has the slice to itself."""
        return self.floor_ms + work * self.per_request_ms

    def beside_neighbours(self, share: float) -> SliceService:
        """The same where the slice keeps this share of its speed, above 0 and up to 1, beside loaded neighbours."""
        if not 0 < share <= 1:
            raise InputFault(
                "share",
                f"is {share}, not a share above 0 and at most 1",
                "Give 1 where there are no neighbours.",
            )
        return SliceService(self.floor_ms / share, self.per_request_ms / share)


def service_from_two_points(single_ms: float, offline_rps: float) -> SliceService:
    """The line through the mean time of one request alone and the rate at which many are completed.

    Where one request alone is faster than the rate allows, the rate wins: there is no floor then.
    """
    for name, value in (("single_ms", single_ms), ("offline_rps", offline_rps)):
        if not 0 < value < float("inf"):
            raise InputFault(name, f"is {value}, not a finite number above 0", "Give what was measured.")
    per_request_ms = 1e3 / offline_rps
    return SliceService(max(0.0, single_ms - per_request_ms), per_request_ms)
