"""The change on its hosts: what applying would do, the command, and on this server's own host the act itself."""

from __future__ import annotations

import socket

import streamlit as st

from app.plans.deploy.change_options import ChangeOptions, command
from app.session import trust
from app.shell import frame
from torchsplit_core import jobs
from torchsplit_core.apply import ApplySettings, HostChange, change_text, hosts_of
from torchsplit_core.files import write_text
from torchsplit_core.jobs.job_kinds import APPLY, ApplyParameters
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.values import HostState, Transition, point_type
from torchsplit_core.workspace.store import Workspace


def render(
    workspace: Workspace,
    name: str,
    plan_sha256: str,
    state: HostState,
    outcome: Transition,
    options: ChangeOptions,
    *,
    has_request: bool,
    has_gpus: bool,
) -> None:
    """The dry run of each host; the act where this server runs on one of them. `plan_sha256`: of the plan's text."""
    server = socket.gethostname()
    hosts = [server if host is None else host for host in hosts_of(state)]
    settings = _settings(name, outcome)
    opened = st.expander("On the hosts: dry run and command", key="apply-dry", on_change="rerun")
    if opened.open:
        with opened:
            for host in hosts:
                change = HostChange.of(outcome, state, host, plan_sha256)
                others = [other for other in hosts if other != host]
                text = change_text(change, settings, others if len(hosts) > 1 else ())
                st.code(text, language=None, height="content", wrap_lines=True)
            line = command("apply", name, options, settings, has_request=has_request)
            st.code(line, language=None, wrap_lines=True)
    if has_gpus and server in hosts and any(point_type(gpu.type) == gpu.type for gpu in state.gpus):
        _act(workspace, name, plan_sha256, state, server, options, settings, has_request=has_request)


def _settings(name: str, outcome: Transition) -> ApplySettings:
    """Who stops and starts tenants, and whether MIG mode is switched, as the command has it."""
    actions = {step.action for step in outcome.steps}
    commands: dict[str, str] = {}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        for action, example in (
            ("stop", "systemctl stop model-$TORCHSPLIT_MODEL"), ("start", "start-model $TORCHSPLIT_UUID"),
        ):  # fmt: skip
            if action in actions:
                commands[action] = st.text_input(
                    f"Command that {action}s a tenant", key=f"apply-on-{action} {name}", persist_state="session",
                    placeholder="none: by you", width=230,
                    help=f"Run by /bin/sh on the host, once for each tenant that {action}s, for example {example}. "
                    "TORCHSPLIT_MODEL, _VARIANT, _STAGE, _BATCH_SIZE, _PROCESSES, _SHARE, _GPU, _PROFILE, _START and "
                    "_UUID say which.",
                ).strip()  # fmt: skip
        switch = bool(actions & {"enable_mig", "disable_mig"}) and st.checkbox(
            "Switch MIG mode", key=f"apply-mode {name}", persist_state="session",
            help="Where the plan needs it and no process runs on the GPU. A100 and A30 are reset for it.",
        )  # fmt: skip
    return ApplySettings(commands.get("stop") or None, commands.get("start") or None, switch_mig_mode=switch)


def _act(
    workspace: Workspace,
    name: str,
    plan_sha256: str,
    state: HostState,
    host: str,
    options: ChangeOptions,
    settings: ApplySettings,
    *,
    has_request: bool,
) -> None:
    st.subheader("Apply on this host", anchor=False)
    if trust.is_refused():
        st.info("Others can reach this server, so it changes no GPU: run the command on the host.")
        return
    st.caption(
        "Only what differs is changed. Without commands above tenants are yours to stop and start: each step waits up "
        "to a minute for the processes of its instance to end, and the change stops at the first surprise. torchsplit "
        "apply --status says where it stands, --undo goes back."
    )
    last = jobs.newest(workspace, APPLY, name)
    if last is not None and last.state == "done" and last.result["plan_sha256"] == plan_sha256:
        st.success(
            escape_markdown(
                f"{last.result['host']} was brought to this plan: choose This host above for what stands now. "
                f"Journal: {last.result['journal']}"
            )
        )
    with st.form("apply", border=False):
        typed = st.text_input(f"Type {host} to change its GPUs", key="apply-host", autocomplete="off")
        pressed = st.form_submit_button("Apply on this host")
    if jobs.running(workspace, (APPLY,)):
        st.info("A change is under way: its progress is at the lower right.")
    elif pressed and typed.strip() != host:
        st.error(escape_markdown(f"This host is {host}. Nothing was changed."))
    elif pressed:
        with frame.fault_boundary():
            parameters = ApplyParameters(
                name, plan_sha256, write_text(state), host, options.prefer == "loss", options.evict, options.start_s,
                has_request, settings.on_stop or "", settings.on_start or "", settings.switch_mig_mode,
            )  # fmt: skip
            jobs.start(workspace, f"Apply {name} on {host}", APPLY, parameters)
            st.rerun()
