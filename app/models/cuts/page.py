"""The cuts of a model: where should a model be cut, and how far from the best can that be?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import streamlit as st

from app.charts.cuts import CutDot, StageBar, bars, pareto_front
from app.components import saving
from app.models.cuts import explore, form
from app.models.cuts.candidate_tables import OBJECTIVE_LABELS, candidates_table, describe_reason, stages_table
from app.session import cuts, scenario
from app.session.cuts import USER_CUT, CutStudy
from app.session.model import GraphModel, open_model
from app.session.result_kind import SCENARIO
from app.session.uploads import needs_file
from app.shell import frame, navigation, widgets
from app.shell.replan import plan_again
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import PROFILE, ProfileParameters
from torchsplit_core.partitioning import PartitionProvider, cut_reasons, undominated
from torchsplit_core.partitioning.candidates import objective_value
from torchsplit_core.pictures.numbers import THIN, UNKNOWN, escape_markdown, memory_size, percent, short, size
from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.build import model_name
from torchsplit_core.values import PartitionCandidate
from torchsplit_core.values.units import GIB
from torchsplit_core.workspace.named_results import exists, partition_name
from torchsplit_core.workspace.store import Workspace

QUESTION = "Where should a model be cut, and how far from the best can that be?"


@dataclass(frozen=True)
class CutsView:
    """What the tab shows: a study, the chosen cut with its key, and the user's own cut if there is one."""

    study: CutStudy
    provider: PartitionProvider
    chosen: PartitionCandidate
    chosen_key: str
    user_cut: PartitionCandidate | None
    user_values: tuple[str, ...]

    @property
    def rows(self) -> list[tuple[str, PartitionCandidate, bool]]:
        """(key, cut, whether another beats it), the user's own first."""
        on_front = {cut.stages for cut in self.study.choice}
        known = [(key, cut, cut.stages not in on_front) for key, cut in self.study.by_key.items()]
        known.sort(key=lambda row: row[2])
        if self.user_cut is None:
            return known
        front = undominated((*self.study.choice, self.user_cut), self.study.objective)
        return [(USER_CUT, self.user_cut, self.user_cut not in front), *known]


def render(workspace: Workspace, name: str | None) -> None:
    """The whole tab for one traced model."""
    if name is None or not exists(workspace, "graph", name):
        st.write("Here you will see where to cut a model so that its slowest stage is as fast as can be.")
        navigation.link("Models", "Trace a model first", icon=":material/arrow_forward:")
        return
    st.write(QUESTION)
    with st.container(horizontal=True, vertical_alignment="center"):
        model = open_model(workspace, name)
        widgets.badge(model.basis_text, model.basis_colour)
    if model.misfit:
        st.warning(escape_markdown(f"The profile under its name is left out. {model.misfit}"))
    if model.profile is None or not model.graph.metadata:
        _profile_first(workspace, name)
        return
    study = cuts.load_study(workspace, name, model.graph.architecture_hash)
    with frame.picture_beside("partition"):
        left, right = st.columns([23, 77], gap="medium")
    with left:
        form.render(workspace, name, study)
    with right:
        if study is None:
            st.info(
                "Press Find cuts: you will see cuts ranked, what crosses each, the memory of each stage, "
                "and how far from the best they can be."
            )
            return
        shown = _load_view(workspace, model, study)
        if shown is None:
            st.warning(f"No cut was found. {escape_markdown(study.last.message)}")
            return
        _render_figures(shown)
        _pictures(workspace, name, shown)
    if shown is not None:
        st.header("The cut drawn over the model", anchor=False)
        explore.render(workspace, model, study, shown.provider)
        _render_stages(model.name, shown)
        _ranking(workspace, model, shown)


def _profile_first(workspace: Workspace, name: str) -> None:
    st.write("A cut needs the time of every operation: profile this model first.")
    if needs_file(workspace, name):
        navigation.link("Profile", "To its profile", name, icon=":material/arrow_forward:")
    elif st.button("Profile this model", type="primary"):
        jobs.start(workspace, f"Profile {name}", PROFILE, ProfileParameters((name,)))
        st.rerun()


def _load_view(workspace: Workspace, model: GraphModel, study: CutStudy) -> CutsView | None:
    """The view of a study; None without a cut."""
    assert model.profile is not None
    provider = cuts.provider(model.sha256, model.profile_sha256, model.graph, model.profile)
    selection = cuts.selected_cut(workspace, model.name, study, provider)
    if selection.fault:
        st.error(escape_markdown(selection.fault))
    if selection.candidate is None:
        return None
    values = cuts.user_values(workspace, model.name, model.graph)
    return CutsView(study, provider, selection.candidate, selection.key, selection.user_cut, values)


def _render_figures(shown: CutsView) -> None:
    """The chosen cut in four figures, and how far the best cut is proven."""
    study, chosen, last = shown.study, shown.chosen, shown.study.last
    value = objective_value(chosen, study.objective)
    whole = shown.provider.row.batch_ms
    title = f"{OBJECTIVE_LABELS[study.objective].capitalize()}, of {len(chosen.stages)}"
    faster = f"×{THIN}{short(whole / value)}" if value > 0 else UNKNOWN
    batch = f"which takes {short(whole, 'ms')} a batch of {shown.provider.row.batch_size} on average, as in Profile"
    crossing = size(sum(chosen.cut_bytes)) if chosen.cut_bytes else "nothing"
    peaks = chosen.peak_memory_bytes
    cards = (
        (title, short(value, "ms"), _compare_with_best(shown)),
        ("Against the whole model", faster, batch),
        ("Crosses the cuts", crossing, f"a batch of {shown.provider.graph.traced_batch}, masks included"),
        (
            "Memory of the largest stage",
            memory_size(max(peaks)),
            f"of {memory_size(sum(peaks))} in all stages",
        ),
    )
    widgets.metric_cards(cards)
    with st.container(horizontal=True, vertical_alignment="center"):
        if last.status == "optimal":
            widgets.badge("best proven optimal", "gray")
        else:
            widgets.badge(f"gap to the bound {percent(last.gap)}", "yellow")
        row = shown.provider.row
        where = row.device or row.gpu_type
        widgets.badge(f"stage loads estimated from times {row.basis} on {where}", "yellow")
        st.caption(f"For {form.describe_devices(study.devices)}.")


def _compare_with_best(shown: CutsView) -> str:
    """How far the chosen cut is above the best by the objective."""
    objective = shown.study.objective
    value, best = (objective_value(cut, objective) for cut in (shown.chosen, shown.study.candidates[0]))
    if value <= best * (1 + 1e-9):
        return "none found is better"
    return f"{percent(value / best - 1)} above the best found"


def _pictures(workspace: Workspace, name: str, shown: CutsView) -> None:
    study, dark = shown.study, widgets.is_dark()
    left, right = st.columns([54, 46], gap="medium")
    with left:
        st.header("All cuts: less is better both ways", anchor=False)
        front = pareto_front(dots(shown), study.last.bound_ms, OBJECTIVE_LABELS[study.objective], dark=dark)
        alt = "Each cut by its slowest stage and the bytes that cross it; the table below has the figures"
        choose = partial(cuts.choose, workspace, name)
        widgets.chart(front, "Cuts", f"{name}.cuts", key="partition-front", alt=alt, on_point=choose)
        st.caption("Click a dot to choose its cut. Faint: another is no worse in time, bytes and memory.")
    with right:
        st.header("Load of each stage", anchor=False)
        groups = [("chosen" if shown.chosen_key != USER_CUT else "yours", _bars(shown, shown.chosen))]
        if shown.chosen_key == USER_CUT:
            rival = _comparison_cut(shown)
            groups.append((f"best of {len(rival.stages)}", _bars(shown, rival)))
        elif shown.user_cut is not None:
            groups.append(("yours", _bars(shown, shown.user_cut)))
        of_as_many = study.outcomes.get(len(shown.chosen.stages), study.last)
        bound = of_as_many.bound_ms if study.objective == "throughput" else None
        alt = "The load of each stage of the chosen cut; the table below has the figures"
        loads = bars(groups, bound, dark=dark)
        widgets.chart(loads, "Loads", f"{name}.loads", key="partition-bars", alt=alt)
        st.caption("Hatched: transfers. Dotted: no cut into as many stages has a slowest stage below this.")


def _comparison_cut(shown: CutsView) -> PartitionCandidate:
    """The best cut with as many stages as the user's own, else the best."""
    stages, known = len(shown.chosen.stages), shown.study.candidates
    return next((cut for cut in known if len(cut.stages) == stages), known[0])


def dots(shown: CutsView) -> list[CutDot]:
    """Every cut as a dot of the chart."""
    objective = shown.study.objective
    return [
        CutDot(
            key, len(cut.stages), sum(cut.cut_bytes), objective_value(cut, objective), max(cut.peak_memory_bytes),
            dominated, key == shown.chosen_key, key == USER_CUT,
        )
        for key, cut, dominated in shown.rows
    ]  # fmt: skip


def _bars(shown: CutsView, candidate: PartitionCandidate) -> list[StageBar]:
    factors = shown.study.devices.time_factors
    stage_bars = []
    for stage, (load, ids) in enumerate(zip(candidate.loads_ms, candidate.stages, strict=True)):
        factor = factors[candidate.devices[stage]] if factors else 1.0
        compute_ms = sum(map(shown.provider.time_ms, ids)) * factor
        stage_bars.append(StageBar(f"stage {stage + 1}", stage, compute_ms, max(0.0, load - compute_ms)))
    return stage_bars


def _render_stages(name: str, shown: CutsView) -> None:
    """Each stage in figures, and why each cut lies where it does."""
    st.header("The stages", anchor=False)
    growth = st.column_config.NumberColumn(
        help="How the stage's time grows with the batch: 0 not at all, 1 in proportion.", format="%.2f"
    )
    saving.table(
        stages_table(shown.provider, shown.chosen), f"{name}.stages", key="partition-stages",
        alt="Stages of the chosen cut", column_config={"growth with batch": growth},
    )  # fmt: skip
    for reason in cut_reasons(shown.provider, shown.chosen):
        st.markdown(f"**Cut {reason.after}.** {escape_markdown(describe_reason(reason, shown.provider))}")


def _ranking(workspace: Workspace, model: GraphModel, shown: CutsView) -> None:
    """All cuts as a table to choose from, and the ways to use them."""
    st.header("All cuts", anchor=False)
    dominated = sum(row[2] for row in shown.rows)
    label = f"Also the {dominated} that another beats in everything"
    show_all = dominated > 0 and st.toggle(label, key="partition-every")
    rows = [row for row in shown.rows if show_all or not row[2] or row[0] == shown.chosen_key]
    saving.table(
        candidates_table(rows, shown.study.objective, shown.chosen_key), f"{model.name}.cuts", key="partition-table",
        alt="Cuts, best first", height=min(420, 38 + 35 * len(rows)),
        on_row=lambda place: cuts.choose(workspace, model.name, rows[place][0]) if place < len(rows) else None,
    )  # fmt: skip
    st.caption("Select a row to choose its cut. ● is drawn above.")
    offered = [cut for cut in (shown.user_cut, *shown.study.choice) if cut and len(cut.stages) > 1]
    with st.container(horizontal=True):
        label = f"Offer {len(offered)} cuts to the planner"
        about = "The cuts that no other beats, and your own, become variants of the model in the plan."
        if st.button(label, disabled=not offered, help=about):
            _offer(workspace, model, shown.study, offered)
        data = workspace.get_bytes("partition", partition_name(model.name, max(shown.study.outcomes)))
        file = f"{saving.file_name(model.name)}.partition.json"
        st.download_button("Cuts (JSON)", data, file, "application/json", on_click="ignore")
    command = format_command(model.name, shown)
    if command:
        st.caption("To write the stages of this cut as .pt2 files that run on their own:")
        st.code(command, language="shell", wrap_lines=True)


def format_command(model: str, shown: CutsView) -> str:
    """The command that writes the chosen cut's stages; empty for a dominated cut."""
    study, devices = shown.study, shown.study.devices
    words = ["torchsplit partition", model, "--profile PROFILE.json"]
    if devices.link_gb_per_s:
        words.append(f"--link {devices.link_gb_per_s:g}")
    if devices.time_factors:
        words.append("--time-factors " + ",".join(f"{factor:g}" for factor in devices.time_factors))
    if study.objective != "throughput":
        words.append(f"--objective {study.objective}")
    if shown.chosen_key == USER_CUT:
        words.append("--behind " + ",".join(shown.user_values))
    elif shown.chosen in study.choice:
        if devices.memory_bytes:
            words.append(f"--memory {devices.memory_bytes / GIB:.17g}")
        words.append(f"--stages {devices.count} --pareto --candidate {study.choice.index(shown.chosen) + 1}")
    else:
        return ""
    return " ".join([*words, "--export DIR"])


def _offer(
    workspace: Workspace, model: GraphModel, study: CutStudy, offered: list[PartitionCandidate]
) -> None:
    """Make the cuts variants of the model in the current scenario, and plan it again."""
    assert model.profile is not None
    with frame.fault_boundary():
        ranked = sorted(offered, key=lambda cut: objective_value(cut, study.objective))
        outcome = cuts.offer(workspace, model.name, study, ranked)
        scenario_name, request = SCENARIO.current(workspace), scenario.request(workspace)
        if request is None or scenario_name is None:
            name = model_name(model.profile)
            scenario_name = f"{name} with cuts"
            request = edit.new_request([name], {name: model.profile}, "A100-80GB", 1)
        request = edit.with_cuts(request, model.profile, outcome)
        plan_again(workspace, scenario_name, request, then="Plan")
