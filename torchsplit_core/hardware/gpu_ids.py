"""Which host and which device the id of a GPU names; the rule is the same in plans, host states and every format.

- `node0/gpu3`: the part before the last slash is the host.
- An id without a slash belongs to a single host without a name.
- If the last parts of all ids of a host are different numbers (`gpu3`, `gpu-3` or `3`), these are the device indices
  of `nvidia-smi -L` there. Otherwise the indices are 0, 1, 2, … in the order of the ids.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_INDEX = re.compile(r"(?:gpu[-_]?)?(\d{1,4})", re.IGNORECASE)


def host_of(gpu_id: str) -> str | None:
    """The host that an id names, None where it names none."""
    name, slash, _ = gpu_id.rpartition("/")
    return name if slash else None


def device_indices(gpu_ids: Sequence[str]) -> dict[str, int]:
    """The device index of each GPU of one host; the ids are all that the host has."""
    matches = [_INDEX.fullmatch(gpu_id.rpartition("/")[2]) for gpu_id in gpu_ids]
    numbers = [int(match.group(1)) for match in matches if match is not None]
    if len(numbers) == len(gpu_ids) == len(set(numbers)):
        return dict(zip(gpu_ids, numbers, strict=True))
    return {gpu_id: number for number, gpu_id in enumerate(gpu_ids)}
