"""Plans to deploy, and hosts to deploy them on that are only files."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torchsplit_core.hardware as hardware
from torchsplit_core.values import (
    ObjectiveValue,
    PlannedGpu,
    PlannedModel,
    PlannedSlice,
    PlanOutcome,
    PlanStatistics,
    Tenant,
)

CATALOGUE = Path(hardware.__file__).parent / "data" / "mig_profiles.json"
FAKE = Path(__file__).with_name("fake_nvidia_smi.py")

Slices = Sequence[tuple[str, int, str | Tenant | tuple[Tenant, ...] | None]]


def tenant(model: str, **changes: Any) -> Tenant:
    return replace(Tenant(model, "whole", "whole", 1.0, 8, 1, 120.0, 3.2), **changes)


def planned_gpu(gpu_id: str, gpu_type: str, slices: Slices) -> PlannedGpu:
    """Slices as (profile, start, model or tenants), None for a free slice."""

    def tenants(given: str | Tenant | tuple[Tenant, ...] | None) -> tuple[Tenant, ...]:
        if given is None or isinstance(given, tuple):
            return given or ()
        return (given if isinstance(given, Tenant) else tenant(given),)

    planned = tuple(PlannedSlice(profile, start, tenants(given)) for profile, start, given in slices)
    return PlannedGpu(gpu_id, gpu_type, bool(slices), planned)


def plan_of(*gpus: PlannedGpu, status: Any = "optimal") -> PlanOutcome:
    names = dict.fromkeys(t.model for gpu in gpus for item in gpu.slices for t in item.tenants)
    return PlanOutcome(
        request_sha256="ab" * 32, status=status, objective=ObjectiveValue("leximin", 1.0), gpus=gpus,
        models=tuple(PlannedModel(name, "whole", 120.0, 1.2, 62.0) for name in names),
        statistics=PlanStatistics(0.1, 0.4, 0.01, "highs"),
    )  # fmt: skip


MIXED: Slices = (("1g.10gb", 0, "ocr"), ("1g.10gb", 1, None), ("2g.20gb", 2, "bert"), ("3g.40gb", 4, "clip"))


@dataclass
class FakeHost:
    """A PATH whose nvidia-smi is the fake, and its state."""

    directory: Path

    def set(self, **gpus: dict[str, Any]) -> None:
        """GPUs as gpu0={"type": …}; MIG off and empty unless said."""
        empty = {"mode": "Disabled", "gi": [], "ci": [], "apps": []}
        state = {
            "gpus": {k.removeprefix("gpu"): {**empty, **v} for k, v in gpus.items()},
            "calls": [],
            "changes": [],
        }
        (self.directory / "state.json").write_text(json.dumps(state))

    def alter(self, **fields: Any) -> None:
        """Change fields of the whole state."""
        (self.directory / "state.json").write_text(json.dumps(self.state | fields))

    @property
    def state(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.directory / "state.json").read_text())
        return value

    def placed(self, index: int) -> list[tuple[str, int]]:
        return sorted((row["name"], row["start"]) for row in self.state["gpus"][str(index)]["gi"])

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": f"{self.directory}:{os.environ['PATH']}",
            "FAKE_SMI_STATE": str(self.directory / "state.json"),
            "FAKE_SMI_CATALOGUE": str(CATALOGUE),
            **more,
        }

    def run(self, text: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        script = self.directory / "script.sh"
        script.write_text(text)
        return subprocess.run(
            ["bash", str(script), *arguments], env=self.environment(**more), cwd=self.directory,
            capture_output=True, text=True, timeout=60, start_new_session=True,
        )  # fmt: skip

    def smi(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["nvidia-smi", *arguments], env=self.environment(), capture_output=True, text=True, timeout=60
        )


def install_fake(folder: Path) -> FakeHost:
    """The fake as `nvidia-smi` in the folder."""
    program = folder / "nvidia-smi"
    # -S -E: no site packages; the fake needs none and starts several times faster.
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{FAKE}" "$@"\n')
    program.chmod(0o755)
    return FakeHost(folder)
