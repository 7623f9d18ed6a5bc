"""A transition carried out on its host, step by step: asserted, journalled, read back, finished or undone later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.apply.change import HostChange, apply_change, finish_change, undo_change
    from torchsplit_core.apply.execution import ApplySettings
    from torchsplit_core.apply.hosts import gpus_of, hosts_of, this_host, with_host_facts
    from torchsplit_core.apply.journal import ApplyJournal, default_folder, journal_path, read_journal
    from torchsplit_core.apply.plan import AppliedPlan, apply_plan, host_driver, plan_digest
    from torchsplit_core.apply.script import boot_unit, change_script
    from torchsplit_core.apply.words import change_text, status_text, undo_text

__all__ = [
    "AppliedPlan",
    "ApplyJournal",
    "ApplySettings",
    "HostChange",
    "apply_change",
    "apply_plan",
    "boot_unit",
    "change_script",
    "change_text",
    "default_folder",
    "finish_change",
    "gpus_of",
    "host_driver",
    "hosts_of",
    "journal_path",
    "plan_digest",
    "read_journal",
    "status_text",
    "this_host",
    "undo_change",
    "undo_text",
    "with_host_facts",
]

__getattr__ = on_demand(
    __name__,
    {
        "change": "HostChange apply_change finish_change undo_change",
        "execution": "ApplySettings",
        "hosts": "gpus_of hosts_of this_host with_host_facts",
        "journal": "ApplyJournal default_folder journal_path read_journal",
        "plan": "AppliedPlan apply_plan host_driver plan_digest",
        "script": "boot_unit change_script",
        "words": "change_text status_text undo_text",
    },
)
