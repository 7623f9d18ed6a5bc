"""The published listings of tests/hardware/data, as copies that a test may change."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT
from torchsplit_core.hardware.replay import ReplayNvml

DATA = ROOT / "tests" / "hardware" / "data"
Change = Callable[[dict[str, Any]], object]


def replay(tmp_path: Path, name: str, change: Change = lambda data: None) -> ReplayNvml:
    """A copy of a listing in `tmp_path`, altered first by `change`."""
    data = json.loads((DATA / name).read_text(encoding="utf-8"))
    change(data)
    path = tmp_path / name
    path.write_text(json.dumps(data), encoding="utf-8")
    return ReplayNvml(path)


def layout(nvml: ReplayNvml, index: int = 0) -> list[tuple[str, int, bool]]:
    """Profile, start and whether it computes, of each GPU instance."""
    return [(i.profile, i.start, bool(i.compute_instances)) for i in nvml.gpu_instances(index)]


A30_LAYOUT = [("1g.6gb", 0, True), ("1g.6gb", 1, True), ("2g.12gb", 2, True)]
