"""Sorts jobs into classes by what their rows say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, get_args

from torchsplit_core.tables.job_history.records import GpuJob
from torchsplit_core.values import InputFault

ClassKey = Literal["job-name", "account", "partition", "user", "gres"]
CLASS_KEYS: tuple[ClassKey, ...] = get_args(ClassKey)
NO_VALUE = "(none)"
"""The class of jobs whose cell is empty."""
MOST_CLASSES = 500
"""More are no classes: each would have too few jobs for an hourly rate."""
_NUMBERS = re.compile(r"([-_.,:;/#@\s]+[0-9]+|\[[0-9]+\]|\([0-9]+\))+$")


def class_name(job: GpuJob, key: ClassKey) -> str:
    """A job's class. Of a name, numbers at its end are left out where something divides them from it: `bert-17` and
    `bert_2.5` are bert, `resnet50` stays. Of a type of GPUs it is that type, of several all of them."""
    if key == "gres":
        return "+".join(name or "gpu" for name, _ in job.devices or ()) or NO_VALUE
    label = job.labels[key]
    if key == "job-name":
        label = _NUMBERS.sub("", label) or label
    return label or NO_VALUE


def jobs_by_class(jobs: Iterable[GpuJob], key: ClassKey) -> dict[str, list[GpuJob]]:
    """Jobs by class, in the order of names. Raises InputFault if the history does not say, or has too many classes."""
    classes: dict[str, list[GpuJob]] = {}
    for job in jobs:
        if (job.devices is None) if key == "gres" else (key not in job.labels):
            column = {"gres": "AllocTRES", "job-name": "JobName"}.get(key, key.capitalize())
            raise InputFault("--class-by", f"is {key}, and a table has no column {column}", "Choose another.")
        classes.setdefault(class_name(job, key), []).append(job)
    if len(classes) > MOST_CLASSES:
        raise InputFault(
            "--class-by",
            f"{key} gives {len(classes):,} classes, more than {MOST_CLASSES}",
            f"Choose another of {', '.join(CLASS_KEYS)}.",
        )
    return dict(sorted(classes.items()))
