"""What the user asks of the way to a plan, and the commands that ask the same."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from torchsplit_core.apply import ApplySettings
from torchsplit_core.transition import ChangeTimes

START_S = ChangeTimes().start_s


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """Options of a transition."""

    prefer: str = "gpus"
    evict: bool = False
    start_s: float = START_S


def command(
    word: str, name: str, options: ChangeOptions, settings: ApplySettings | None = None, *, has_request: bool
) -> str:
    """The command transition or (with `settings`) apply with these options on the files of the page."""
    words = ["torchsplit", word, f"{name}.plan.json", "--from", f"{name}.now.json"]
    if has_request:
        words += ["--request", f"{name}.plan_request.json"]
    if options.prefer != "gpus":
        words += ["--prefer", options.prefer]
    if options.evict:
        words.append("--evict-foreign")
    if options.start_s != START_S:
        words += ["--start-s", f"{options.start_s:g}"]
    if settings is not None:
        for option, value in (("--on-stop", settings.on_stop), ("--on-start", settings.on_start)):
            words += [option, value] if value else []
        words += ["--switch-mig-mode"] if settings.switch_mig_mode else []
    return shlex.join((*words, *(("--text",) if word == "transition" else ())))
