"""A day's changes as CronWorkflows of Argo Workflows: suspended, and each asks before it changes anything.

Fields as documented at argo-workflows.readthedocs.io/en/latest/cron-workflows/ and .../fields/ (`schedules` is of
version 3.6 and later). Not tried on a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchsplit_core.day_plans.scheduling.scheduled_change import ScheduledChange
from torchsplit_core.deployment.safe_text import dns_labels
from torchsplit_core.deployment.yaml_text import documents

FILE = "cronworkflows.yaml"
FOLDER = "/var/lib/torchsplit/schedule"
"""Where the files of the schedule are on the node and in its containers."""
JOURNAL = "/var/lib/torchsplit/journal"
_HEAD = f"""\
# The changes of a day as CronWorkflows of Argo Workflows 3.6 or later, times in UTC. Every one is suspended: nothing
# here applies itself. Before you resume one: put this folder on the node as {FOLDER}, set the
# parameters host (what kubernetes.io/hostname and the host's state call it) and image (one with torchsplit in it), read
# its transition, and try the change by hand. A resumed one prints the transition, rehearses it, and waits in its step
# agree until you resume that run, too (argo resume). Not tried on a cluster.
"""


def cron_workflows(changes: Sequence[ScheduledChange]) -> str:
    """A CronWorkflow for each change, as one text of YAML."""
    # With its prefix a name has at most 50 characters of the 52 that Argo allows, since it appends the time of a run.
    names = dns_labels({number: ("to", change.after) for number, change in enumerate(changes)})
    return _HEAD + documents(_cron_workflow(names[number], change) for number, change in enumerate(changes))


def _cron_workflow(name: str, change: ScheduledChange) -> dict[str, Any]:
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "CronWorkflow",
        "metadata": {
            "name": f"day-{name}",
            "annotations": {
                "torchsplit/before": change.before,
                "torchsplit/after": change.after,
                "torchsplit/touched-gpus": str(change.transition.touched_gpus),
                "torchsplit/transition": f"{change.folder}/transition.json",
            },
        },
        "spec": {
            "schedules": [change.cron],
            "timezone": "UTC",
            "suspend": True,
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 0,
            "workflowSpec": _workflow(change),
        },
    }


def _workflow(change: ScheduledChange) -> dict[str, Any]:
    steps = ("read", "rehearse", "agree", "apply")
    plan = [
        "apply",
        f"{FOLDER}/{change.folder}/plan.json",
        "--request",
        f"{FOLDER}/{change.folder}/plan_request.json",
    ]
    plan += ["--journal", JOURNAL]
    host = "{{workflow.parameters.host}}"
    return {
        "entrypoint": "change",
        "arguments": {"parameters": [{"name": "host", "value": "HOST"}, {"name": "image", "value": "IMAGE"}]},
        "volumes": [
            {"name": "schedule", "hostPath": {"path": FOLDER, "type": "Directory"}},
            {"name": "journal", "hostPath": {"path": JOURNAL, "type": "DirectoryOrCreate"}},
        ],
        "templates": [
            {"name": "change", "steps": [[{"name": step, "template": step}] for step in steps]},
            _template("read", ["cat"], [f"{FOLDER}/{change.folder}/transition.txt"]),
            _template("rehearse", ["torchsplit"], plan),
            {"name": "agree", "suspend": {}},
            _template("apply", ["torchsplit"], [*plan, "--yes", host]),
        ],
    }


def _template(name: str, command: list[str], arguments: list[str]) -> dict[str, Any]:
    """A step on the node itself; MIG instances are cut through its driver, which takes the rights of the host."""
    return {
        "name": name,
        "nodeSelector": {"kubernetes.io/hostname": "{{workflow.parameters.host}}"},
        "container": {
            "image": "{{workflow.parameters.image}}",
            "command": command,
            "args": arguments,
            "securityContext": {"privileged": True, "runAsUser": 0},
            "volumeMounts": [
                {"name": "schedule", "mountPath": FOLDER, "readOnly": True},
                {"name": "journal", "mountPath": JOURNAL},
            ],
        },
    }
