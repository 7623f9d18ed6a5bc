"""The cuts of a model: where should a model be cut, and how far from the best can that be?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from app.charts.cuts import Bar, Dot, bars, front
from app.charts.theme import CONFIG
from app.components import saving
from app.models.cuts import explore, form
from app.models.cuts.words import WHAT, candidates_table, reason_text, stages_table
from app.session import cuts, scenario
from app.session.cuts import OWN, Study
from app.session.model import GraphModel, open_model
from app.session.thing import SCENARIO
from app.shell import frame, navigation, widgets
from app.shell.replan import plan_again
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import PROFILE, ProfileParameters
from torchsplit_core.partitioning import PartitionProvider, cut_reasons, undominated
from torchsplit_core.partitioning.candidates import value_of
from torchsplit_core.pictures.numbers import THIN, UNKNOWN, memory_size, percent, escape_markdown, short, size
from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.build import model_name
from torchsplit_core.values import PartitionCandidate
from torchsplit_core.values.units import GIB
from torchsplit_core.workspace.named_results import exists, partition_name
from torchsplit_core.workspace.store import Workspace

QUESTION = "Where should a model be cut, and how far from the best can that be?"


@dataclass(frozen=True)
class Shown:
    """What the page shows: a study, the cut chosen under its key, and the user's own where there is one."""

    study: Study
    provider: PartitionProvider
    chosen: PartitionCandidate
    chosen_key: str
    own: PartitionCandidate | None
    own_values: tuple[str, ...]

    @property
    def rows(self) -> list[tuple[str, PartitionCandidate, bool]]:
        """(key, cut, whether another beats it), the user's own first."""
        kept = {one.stages for one in self.study.choice}
        known = [(key, one, one.stages not in kept) for key, one in self.study.by_key.items()]
        known.sort(key=lambda row: row[2])
        if self.own is None:
            return known
        beaten = self.own not in undominated((*self.study.choice, self.own), self.study.objective)
        return [(OWN, self.own, beaten), *known]


def show(workspace: Workspace, name: str | None) -> None:
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
    study = cuts.study(workspace, name, model.graph.architecture_hash)
    with frame.picture_beside("partition"):
        left, right = st.columns([23, 77], gap="medium")
    with left:
        form.show(workspace, name, study)
    with right:
        if study is None:
            st.info(
                "Press Find cuts: you will see cuts ranked, what crosses each, the memory of each stage, "
                "and how far from the best they can be."
            )
            return
        shown = _shown(workspace, model, study)
        if shown is None:
            st.warning(f"No cut was found. {escape_markdown(study.last.message)}")
            return
        _answer(shown)
        _pictures(workspace, name, shown)
    if shown is not None:
        st.header("The cut drawn over the model", anchor=False)
        explore.show(workspace, model, study, shown.provider)
        _parts(model.name, shown)
        _ranking(workspace, model, shown)


def _profile_first(workspace: Workspace, name: str) -> None:
    st.write("A cut needs the time of every operation: profile this model first.")
    if not name.startswith("sample:"):
        navigation.link("Profile", "To its profile", name, icon=":material/arrow_forward:")
    elif st.button("Profile this model", type="primary"):
        jobs.start(workspace, f"Profile {name}", PROFILE, ProfileParameters((name,)))
        st.rerun()


def _shown(workspace: Workspace, model: GraphModel, study: Study) -> Shown | None:
    """None where nothing was found."""
    assert model.profile is not None
    provider = cuts.provider(model.sha256, model.profile_sha256, model.graph, model.profile)
    found = cuts.chosen(workspace, model.name, study, provider)
    if found.fault:
        st.error(escape_markdown(found.fault))
    if found.candidate is None:
        return None
    values = cuts.own_values(workspace, model.name, model.graph)
    return Shown(study, provider, found.candidate, found.key, found.own, values)


def _answer(shown: Shown) -> None:
    """The chosen cut in four figures, with what is proven of the best."""
    study, chosen, last = shown.study, shown.chosen, shown.study.last
    value = value_of(chosen, study.objective)
    whole = shown.provider.row.batch_ms
    cards = (
        (
            f"{WHAT[study.objective].capitalize()}, of {len(chosen.stages)}",
            short(value, "ms"),
            _against(shown),
        ),
        (
            "Against the whole model",
            f"×{THIN}{short(whole / value)}" if value > 0 else UNKNOWN,
            f"which takes {short(whole, 'ms')} a batch of {shown.provider.row.batch_size} on average, as in Profile",
        ),
        (
            "Crosses the cuts",
            size(sum(chosen.cut_bytes)) if chosen.cut_bytes else "nothing",
            f"a batch of {shown.provider.graph.traced_batch}, masks included",
        ),
        (
            "Memory of the largest stage",
            memory_size(max(chosen.peak_memory_bytes)),
            f"of {memory_size(sum(chosen.peak_memory_bytes))} in all stages",
        ),
    )
    widgets.cards(cards)
    with st.container(horizontal=True, vertical_alignment="center"):
        if last.status == "optimal":
            widgets.badge("best proven optimal", "gray")
        else:
            widgets.badge(f"gap to the bound {percent(last.gap)}", "yellow")
        row = shown.provider.row
        where = row.device or row.gpu_type
        widgets.badge(f"stage loads estimated from times {row.basis} on {where}", "yellow")
        st.caption(f"For {form.asked_text(study)}.")


def _against(shown: Shown) -> str:
    """How the chosen cut stands to the best by the objective."""
    study = shown.study
    value, best = value_of(shown.chosen, study.objective), value_of(study.candidates[0], study.objective)
    if value <= best * (1 + 1e-9):
        return "none found is better"
    return f"{percent(value / best - 1)} above the best found"


def _pictures(workspace: Workspace, name: str, shown: Shown) -> None:
    study, dark = shown.study, st.context.theme.type == "dark"
    left, right = st.columns([54, 46], gap="medium")
    with left:
        st.header("All cuts: less is better both ways", anchor=False)
        with saving.saved("Cuts", f"{name}.cuts", key="partition-front"):
            st.plotly_chart(
                front(dots(shown), study.last.bound_ms, WHAT[study.objective], dark=dark), theme=None,
                key="partition-front", config=CONFIG, selection_mode="points",
                on_select=lambda: _clicked(workspace, name),
                alt="Each cut by its slowest stage and the bytes that cross it; the table below has the figures",
            )  # fmt: skip
        st.caption("Click a dot to choose its cut. Faint: another is no worse in time, bytes and memory.")
    with right:
        st.header("Load of each stage", anchor=False)
        groups = [("chosen" if shown.chosen_key != OWN else "yours", _bars(shown, shown.chosen))]
        if shown.chosen_key == OWN:
            rival = _rival(shown)
            groups.append((f"best of {len(rival.stages)}", _bars(shown, rival)))
        elif shown.own is not None:
            groups.append(("yours", _bars(shown, shown.own)))
        of_as_many = study.outcomes.get(len(shown.chosen.stages), study.last)
        bound = of_as_many.bound_ms if study.objective == "throughput" else None
        with saving.saved("Loads", f"{name}.loads", key="partition-bars"):
            st.plotly_chart(
                bars(groups, bound, dark=dark), theme=None, key="partition-bars", config=CONFIG,
                alt="The load of each stage of the chosen cut; the table below has the figures",
            )  # fmt: skip
        st.caption("Hatched: transfers. Dotted: no cut into as many stages has a slowest stage below this.")


def _rival(shown: Shown) -> PartitionCandidate:
    """The best with as many stages as the user's own, else the best."""
    stages = len(shown.chosen.stages)
    return next(
        (one for one in shown.study.candidates if len(one.stages) == stages), shown.study.candidates[0]
    )


def dots(shown: Shown) -> list[Dot]:
    """Every cut as a dot of the chart."""
    objective = shown.study.objective
    return [
        Dot(
            key, len(one.stages), sum(one.cut_bytes), value_of(one, objective), max(one.peak_memory_bytes),
            beaten, key == shown.chosen_key, key == OWN,
        )
        for key, one, beaten in shown.rows
    ]  # fmt: skip


def _bars(shown: Shown, candidate: PartitionCandidate) -> list[Bar]:
    factors = shown.study.devices.time_factors
    found = []
    for stage, (load, ids) in enumerate(zip(candidate.loads_ms, candidate.stages, strict=True)):
        own = sum(map(shown.provider.time_ms, ids)) * (factors[candidate.devices[stage]] if factors else 1.0)
        found.append(Bar(f"stage {stage + 1}", stage, own, max(0.0, load - own)))
    return found


def _clicked(workspace: Workspace, name: str) -> None:
    points = st.session_state["partition-front"]["selection"]["points"]
    if points and points[0].get("customdata"):
        cuts.choose(workspace, name, str(points[0]["customdata"][0]))


def _parts(name: str, shown: Shown) -> None:
    """Each stage in figures, and why each cut lies where it does."""
    st.header("The stages", anchor=False)
    saving.table(
        stages_table(shown.provider, shown.chosen),
        f"{name}.stages",
        key="partition-stages",
        alt="Stages of the chosen cut",
        column_config={
            "growth with batch": st.column_config.NumberColumn(
                help="How the stage's time grows with the batch: 0 not at all, 1 in proportion.",
                format="%.2f",
            )
        },
    )
    for reason in cut_reasons(shown.provider, shown.chosen):
        st.markdown(f"**Cut {reason.after}.** {escape_markdown(reason_text(reason, shown.provider))}")


def _ranking(workspace: Workspace, model: GraphModel, shown: Shown) -> None:
    """All cuts as a table to choose from, and where they go from here."""
    st.header("All cuts", anchor=False)
    beaten = sum(row[2] for row in shown.rows)
    every = beaten > 0 and st.toggle(
        f"Also the {beaten} that another beats in everything", key="partition-every"
    )
    rows = [row for row in shown.rows if every or not row[2] or row[0] == shown.chosen_key]
    saving.table(
        candidates_table(rows, shown.study.objective, shown.chosen_key),
        f"{model.name}.cuts",
        key="partition-table",
        alt="Cuts, best first",
        selection_mode="single-row",
        height=min(420, 38 + 35 * len(rows)),
        on_select=lambda: _row(workspace, model.name, [row[0] for row in rows]),
    )
    st.caption("Select a row to choose its cut. ● is drawn above.")
    offered = [one for one in (shown.own, *shown.study.choice) if one is not None and len(one.stages) > 1]
    with st.container(horizontal=True):
        if st.button(
            f"Offer {len(offered)} cuts to the planner",
            disabled=not offered,
            help="The cuts that no other beats, and your own, become variants of the model in the plan.",
        ):
            _offer(workspace, model, shown.study, offered)
        st.download_button(
            "Cuts (JSON)",
            workspace.get_bytes("partition", partition_name(model.name, max(shown.study.outcomes))),
            f"{saving.file_name(model.name)}.partition.json",
            "application/json",
            on_click="ignore",
        )
    command = command_text(model.name, shown)
    if command:
        st.caption("To write the stages of this cut as .pt2 files that run on their own:")
        st.code(command, language="shell", wrap_lines=True)


def command_text(model: str, shown: Shown) -> str:
    """The command that writes the chosen cut's stages; empty for a cut that another beats."""
    study = shown.study
    devices = study.devices
    words = ["torchsplit partition", model, "--profile PROFILE.json"]
    if devices.link_gb_per_s:
        words.append(f"--link {devices.link_gb_per_s:g}")
    if devices.time_factors:
        words.append("--time-factors " + ",".join(f"{factor:g}" for factor in devices.time_factors))
    if study.objective != "throughput":
        words.append(f"--objective {study.objective}")
    if shown.chosen_key == OWN:
        words.append("--behind " + ",".join(shown.own_values))
    elif shown.chosen in study.choice:
        if devices.memory_bytes:
            words.append(f"--memory {devices.memory_bytes / GIB:.17g}")
        words.append(f"--stages {devices.count} --pareto --candidate {study.choice.index(shown.chosen) + 1}")
    else:
        return ""
    return " ".join([*words, "--export DIR"])


def _row(workspace: Workspace, name: str, keys: Sequence[str]) -> None:
    rows = st.session_state["partition-table"]["selection"]["rows"]
    if rows and rows[0] < len(keys):
        cuts.choose(workspace, name, keys[rows[0]])


def _offer(workspace: Workspace, model: GraphModel, study: Study, offered: list[PartitionCandidate]) -> None:
    """The cuts become variants of the model in the current scenario, and it is planned again."""
    assert model.profile is not None
    with frame.telling():
        ranked = sorted(offered, key=lambda one: value_of(one, study.objective))
        outcome = cuts.offer(workspace, model.name, study, ranked)
        scenario_name, request = SCENARIO.current(workspace), scenario.request(workspace)
        if request is None or scenario_name is None:
            name = model_name(model.profile)
            scenario_name = f"{name} with cuts"
            request = edit.new_request([name], {name: model.profile}, "A100-80GB", 1)
        request = edit.with_cuts(request, model.profile, outcome)
        plan_again(workspace, scenario_name, request, then="Plan")
