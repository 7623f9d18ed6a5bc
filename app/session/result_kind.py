"""The kinds of things that a workspace keeps by name: which there are, and which one of each is looked at.

The address carries it (`?scenario=NAME`), so that a link shows what its sender saw, and two tabs can show two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import streamlit as st

from app.session import models
from app.session.workspace import remember_choice, selected_name
from torchsplit_core.jobs.job_kinds import (
    DIVISIONS,
    EXPLAIN,
    MEASURE,
    PARTITION,
    PLACE,
    PLACEMENT_FRONTIER,
    PLAN,
    PROFILE,
    RUN_HERE,
    STRATEGY,
    STRATEGY_STUDY,
    SWEEP,
    TRACE,
    TRAIN,
    TRAIN_ON,
    WHAT_IF,
)
from torchsplit_core.jobs.train import run_paths
from torchsplit_core.values import InputFault, quoted
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace

LONGEST_TAG, MOST_TAGS = 40, 20
"""Characters of a tag, and tags of a thing."""


@dataclass(frozen=True, slots=True)
class ResultKind:
    """A kind of thing.

    `word` is what one is called, and the query parameter and the workspace setting that hold the name of the one
    looked at. `known` says which there are, in the order in which they are offered. `files` are the kinds of results
    under its name, `work` the kinds of jobs on it.
    """

    word: str
    names: Callable[[Workspace], tuple[str, ...]]
    artifact_kinds: tuple[str, ...]
    job_kinds: tuple[str, ...]

    def current(self, workspace: Workspace, among: Sequence[str] | None = None) -> str | None:
        """The one of the address, else of this session, else the one looked at last, else the first.

        None where there is none. `among`: all there are, where the caller has asked.
        """
        names = self.names(workspace) if among is None else among
        return selected_name(workspace, self.word, names, st.query_params.get(self.word))

    def unknown_in_address(self, among: Sequence[str]) -> str | None:
        """The one that the address names and that is none of these: no other may stand in for it unsaid."""
        requested = st.query_params.get(self.word)
        return requested if requested and requested not in among else None

    def choose(self, workspace: Workspace, name: str) -> None:
        """Make it the one that is looked at, in this session and by those that come without an address."""
        if self.word in st.query_params:
            st.query_params[self.word] = name
        remember_choice(workspace, self.word, name)

    def forget(self, workspace: Workspace, name: str) -> None:
        """Remove its results; the address names it no more."""
        if st.query_params.get(self.word) == name:
            del st.query_params[self.word]
        named_results.remove(workspace, self.artifact_kinds, name)
        if name in self.tags(workspace):
            self.tag(workspace, name, ())

    def tags(self, workspace: Workspace) -> Mapping[str, tuple[str, ...]]:
        """The tags of those that have some, in the order in which they were given."""
        stored = workspace.setting(self._tags_setting, {})
        return {name: tuple(given) for name, given in stored.items()}

    def tag(self, workspace: Workspace, name: str, tags: Iterable[str]) -> None:
        """Give one these tags in place of those it has. Raises InputFault for tags that are too long or too many."""
        given = checked_tags(tags)

        def change(stored: dict[str, list[str]] | None) -> dict[str, list[str]]:
            others = {other: known for other, known in (stored or {}).items() if other != name}
            return others | ({name: given} if given else {})

        workspace.change_setting(self._tags_setting, change)

    @property
    def _tags_setting(self) -> str:
        return f"tags of {self.word}s"


def checked_tags(tags: Iterable[str]) -> list[str]:
    """Each tag once, without blanks around it. Raises InputFault for tags that are too long or too many."""
    given = list(dict.fromkeys(filter(None, (" ".join(tag.split()) for tag in tags))))
    for tag in given:
        if len(tag) > LONGEST_TAG:
            raise InputFault(
                "tag",
                f"{quoted(tag)} has {len(tag)} characters, above the most of {LONGEST_TAG}",
                "Choose a shorter one.",
            )
    if len(given) > MOST_TAGS:
        raise InputFault("tags", f"are {len(given)}, above the most of {MOST_TAGS}", "Remove some.")
    return given


def _named_by(*kinds: str) -> Callable[[Workspace], tuple[str, ...]]:
    """The names of these kinds of results, those of the first newest first."""
    return lambda workspace: named_results.names(workspace, *kinds)


def _run_names(workspace: Workspace) -> tuple[str, ...]:
    """Newest first; those whose folder is gone are left out."""
    return tuple(name for name, path in run_paths(workspace).items() if path.is_dir())


MODEL = ResultKind("model", models.model_names, ("graph", "profile"), (TRACE, PROFILE, PARTITION))
SCENARIO = ResultKind(
    "scenario",
    _named_by("plan_request", "plan"),
    named_results.SCENARIO_KINDS,
    (PLAN, EXPLAIN, SWEEP, WHAT_IF, MEASURE, RUN_HERE),
)
# Without its request nothing can be shown of one.
PLACEMENT = ResultKind(
    "placement",
    _named_by("placement_request"),
    named_results.PLACEMENT_KINDS,
    (PLACE, PLACEMENT_FRONTIER, DIVISIONS),
)
TRAINING = ResultKind(
    "training", _named_by("strategy_request"), named_results.TRAINING_KINDS, (STRATEGY, STRATEGY_STUDY)
)
RUN = ResultKind("run", _run_names, (), (TRAIN, TRAIN_ON))
RESULT_KINDS = (MODEL, SCENARIO, PLACEMENT, TRAINING, RUN)
