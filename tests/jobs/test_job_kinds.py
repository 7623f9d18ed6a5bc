"""The kinds of jobs: every name has a function that takes its dataclass, and what was stored is read back."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchsplit_core.isolation.trust_policy import requests_trust, without_trust
from torchsplit_core.jobs import job_kinds
from torchsplit_core.jobs.job_kinds import (
    APPLY,
    JOBS,
    PARTITION,
    PROFILE,
    QUICK_START,
    SWEEP,
    TRACE,
    TRAIN,
    TRAIN_ON,
    WHAT_IF,
    ApplyParameters,
    JobParameters,
    PartitionParameters,
    ProfileParameters,
    QuickStartParameters,
    SweepParameters,
    TraceParameters,
    TrainOnParameters,
    TrainParameters,
    UploadedFile,
    WhatIfParameters,
    from_stored,
    to_stored,
)
from torchsplit_core.values import InputFault, SlicesToMake
from torchsplit_core.values.strategy.run import PredictedStep, RunOptions, RunStrategy
from torchsplit_core.values.training import ParallelConfig, TrainingJob

FILE = UploadedFile("m.py", "ab" * 32)
FULL: dict[str, JobParameters] = {
    TRACE: TraceParameters("m.py:Net", FILE),
    PROFILE: ProfileParameters(
        ("sample:bert", "m.py:Net"), "cpu,mig:1", (1, 2), 0.5, 9.0, True, True, 5.5, True,
        {"m.py:Net": FILE}, SlicesToMake(0, ("1g.5gb",), True),
    ),
    PARTITION: PartitionParameters("sample:bert", 3, "latency", 50.0, 10**9, (1.0, 2.0), 9.0),
    WHAT_IF: WhatIfParameters("r", "cd" * 32),
    SWEEP: SweepParameters("r", "gpus", "A30-24GB", (1.0, 2.0), 20.0, True),
    APPLY: ApplyParameters("r", "ab" * 32, "{}", "node0", True, True, 30.0, False),
    QUICK_START: QuickStartParameters((("A100-80GB", 2),), "mine", ("sample:clip",)),
    TRAIN: TrainParameters(
        "m-1", "m.py:Net",
        RunStrategy(ParallelConfig(data=2, shard="fsdp"), TrainingJob(8, "bf16", "sgd"), PredictedStep(1.5, 0.2)),
        RunOptions(9, 3, 1, (3.0, 1.0), 7, False), FILE,
    ),
    TRAIN_ON: TrainOnParameters("m-1", 12, FILE, True),
}  # fmt: skip
"""Parameters with every field set."""


def test_every_name_has_a_function_that_takes_its_dataclass():
    constants = {
        value for name, value in vars(job_kinds).items() if name.isupper() and isinstance(value, str)
    }
    assert constants == set(JOBS)
    for name, kind in JOBS.items():
        assert re.fullmatch("[a-z_]+", name)
        assert dataclasses.is_dataclass(kind.parameters) and kind.parameters.__dataclass_params__.frozen  # type: ignore[attr-defined]
        taken = list(inspect.signature(kind.function()).parameters.values())
        assert [one.name for one in taken] == ["workspace", "parameters", "progress"], name
        assert taken[1].annotation == kind.parameters.__name__, name


def test_no_page_names_a_function_by_its_path():
    dotted = re.compile(r"""["'][a-z_]+(\.[a-z_]+)+:[a-z_]+["']""")
    for folder in ("app", "pages"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not dotted.search(path.read_text()), path
    assert dotted.search(Path(job_kinds.__file__).read_text())


@pytest.mark.parametrize("name", sorted(FULL))
def test_what_is_stored_is_read_back(name):
    wanted = FULL[name]
    assert all(getattr(wanted, field.name) is not None for field in dataclasses.fields(wanted))  # type: ignore[arg-type]
    stored = json.loads(json.dumps(to_stored(name, wanted)))
    assert from_stored(name, stored) == wanted
    assert requests_trust(stored) is (name in (TRACE, PROFILE, TRAIN, TRAIN_ON))
    assert not requests_trust(to_stored(name, from_stored(name, without_trust(stored))))


@pytest.mark.parametrize(
    ("name", "stored", "read"),
    [
        (TRACE, {"source": "sample:bert"}, TraceParameters("sample:bert")),
        (
            TRACE,
            {"source": "m.py:Net", "upload": "m.py", "trace_again": True, "trusted_sha256": "ab" * 32},
            TraceParameters("m.py:Net", FILE),
        ),
        (
            PROFILE,
            {"source": "m.py:Net", "upload": "m.py", "trust": True, "trace_again": True, "batch_sizes": [2]},
            ProfileParameters(
                ("m.py:Net",),
                batch_sizes=(2,),
                trace_again=True,
                uploads={"m.py:Net": UploadedFile("m.py", trust=True)},
            ),
        ),
        (PROFILE, {"source": "sample:bert"}, ProfileParameters(("sample:bert",))),
        (
            PROFILE,
            {"sources": ["m.py:Net"], "device": "", "uploads": {"m.py:Net": {"upload": "m.py"}},
             "make_slices": {"gpu_index": 0, "profiles": ["1g.5gb"], "consent": True}},
            ProfileParameters(
                ("m.py:Net",),
                "",
                uploads={"m.py:Net": UploadedFile("m.py")},
                make_slices=SlicesToMake(0, ("1g.5gb",), True),
            ),
        ),
        (SWEEP, {"request": "r", "parameter": "gpus", "target": "A30-24GB", "values": [1, 2]},
         SweepParameters("r", "gpus", "A30-24GB", (1.0, 2.0))),
    ],
)  # fmt: skip
def test_what_earlier_versions_stored_is_read(name, stored, read):
    assert from_stored(name, stored) == read


@pytest.mark.parametrize(
    ("name", "stored", "words"),
    [
        (TRACE, {}, "source: is missing."),
        (TRACE, {"source": 5}, "source: is 5, but input should be a valid string"),
        (TRACE, {"source": "m.py", "trusted_sha256": "ab"}, "file.upload"),
        (PROFILE, {"sources": ["a"], "batch_sizes": ["x"]}, "batch_sizes.0: is 'x'"),
        (PROFILE, {"sources": ["a"], "make_slices": {"gpu_index": 0, "profiles": [], "consent": "yes"}},
         "make_slices.consent: is 'yes'"),
        (PARTITION, {"source": "a", "objective": "beauty"}, "objective: is 'beauty'"),
        (SWEEP, {"request": "r", "parameter": "gpus", "target": "A", "values": 3}, "values: is 3"),
        (SWEEP, None, "are None, not a JSON object"),
        ("fly", {}, "is of a kind that this TorchSplit does not know"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_message(name, stored, words):
    with pytest.raises(InputFault) as fault:
        from_stored(name, stored)
    assert words in str(fault.value) and "Start the work anew" in str(fault.value)
