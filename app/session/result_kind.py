"""The kinds of results that a workspace stores by name, and which result of each kind is shown.

The address names it (`?scenario=NAME`): a link shows what its sender saw, and two tabs can show two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import streamlit as st

from app.session import models
from app.session.workspace import read, remember_choice, selected_name
from torchsplit_core import jobs
from torchsplit_core.jobs import job_kinds as work
from torchsplit_core.placement.request.validate import validate
from torchsplit_core.training.stored_runs import run_paths
from torchsplit_core.values import InputFault, quoted
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace

LONGEST_TAG, MOST_TAGS = 40, 20
"""How many characters a tag and how many tags a result may have."""


Request = TypeVar("Request")
Outcome = TypeVar("Outcome")


# No slots: Python 3.11 cannot build a frozen dataclass with slots through a generic alias.
@dataclass(frozen=True)
class StoredResult(Generic[Request, Outcome]):
    """A stored request with its outcome (None before a search); `is_current`: the outcome answers this request."""

    name: str
    sha256: str
    request: Request
    outcome: Outcome | None
    is_current: bool


@dataclass(frozen=True, slots=True)
class ResultKind:
    """A kind of result.

    `word` is its name for users, the query parameter, and the workspace setting that holds the name of the one shown.
    `names` lists them in the order in which they are offered. `artifact_kinds` are stored under each name: of a
    request and its outcome in this order. The first of `job_kinds` searches for the outcome, under `job_title`.
    `validate` raises InputFault for a request that makes no sense.
    """

    word: str
    names: Callable[[Workspace], tuple[str, ...]]
    artifact_kinds: tuple[str, ...]
    job_kinds: tuple[str, ...]
    job_title: str = ""
    validate: Callable[[Any], Any] = bool

    def load(self, workspace: Workspace, name: str) -> StoredResult[Any, Any]:
        """Read the request under this name, with its outcome."""
        request_kind, outcome_kind = self.artifact_kinds[:2]
        request, outcome = read(workspace, request_kind, name), read(workspace, outcome_kind, name)
        is_current = outcome is not None and named_results.is_current(workspace, name, request, outcome)
        sha256 = named_results.sha256_of(workspace, request_kind, name)
        return StoredResult(name, sha256, request, outcome, is_current)

    def start(self, workspace: Workspace, name: str, request: Any) -> str:
        """Store a request, show it, and search for its outcome in a job; earlier jobs on it end. The job's id.

        Raises InputFault for a request that makes no sense.
        """
        self.validate(request)
        workspace.put(self.artifact_kinds[0], name, request)
        self.choose(workspace, name)
        jobs.end(workspace, self.job_kinds, name)
        return jobs.start(
            workspace, self.job_title.format(name), self.job_kinds[0], work.RequestParameters(name)
        )

    def start_new(self, workspace: Workspace, wanted: str, request: Any) -> str:
        """`start` under the wanted name, or the next free name; return that name."""
        name = named_results.free_name(workspace, self.artifact_kinds[:1], wanted)
        self.start(workspace, name, request)
        return name

    def current(self, workspace: Workspace, among: Sequence[str] | None = None) -> str | None:
        """The name in the address, else in this session, else the last one shown, else the first; None without any.

        `among`: the names, where the caller has them.
        """
        names = self.names(workspace) if among is None else among
        return selected_name(workspace, self.word, names, st.query_params.get(self.word))

    def unknown_in_address(self, among: Sequence[str]) -> str | None:
        """A name in the address that is not among these: the page must not show another result in its place."""
        requested = st.query_params.get(self.word)
        return requested if requested and requested not in among else None

    def choose(self, workspace: Workspace, name: str) -> None:
        """Show this result, in this session and in sessions that open without an address."""
        if self.word in st.query_params:
            st.query_params[self.word] = name
        remember_choice(workspace, self.word, name)

    def forget(self, workspace: Workspace, name: str) -> None:
        """Remove its results and its tags, and its name from the address."""
        if st.query_params.get(self.word) == name:
            del st.query_params[self.word]
        named_results.remove(workspace, self.artifact_kinds, name)
        if name in self.tags(workspace):
            self.tag(workspace, name, ())

    def tags(self, workspace: Workspace) -> Mapping[str, tuple[str, ...]]:
        """The tags by name, in the order in which users gave them; names without tags are left out."""
        stored = workspace.setting(self._tags_setting, {})
        return {name: tuple(given) for name, given in stored.items()}

    def tag(self, workspace: Workspace, name: str, tags: Iterable[str]) -> None:
        """Replace the tags of a result. Raises InputFault for tags that are too long or too many."""
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
    """The names of these kinds of results: those of the first kind first, newest first."""
    return lambda workspace: named_results.names(workspace, *kinds)


def _run_names(workspace: Workspace) -> tuple[str, ...]:
    """The runs, newest first, without those whose folder is gone."""
    return tuple(name for name, path in run_paths(workspace).items() if path.is_dir())


MODEL = ResultKind(
    "model", models.model_names, ("graph", "profile"), (work.TRACE, work.PROFILE, work.PARTITION)
)
SCENARIO = ResultKind(
    "scenario",
    _named_by("plan_request", "plan"),
    named_results.SCENARIO_KINDS,
    (
        work.PLAN,
        work.EXPLAIN,
        work.SWEEP,
        work.DAY,
        work.DAY_CURVE,
        work.HELD_OUT,
        work.DAY_REPLAY,
        work.WHAT_IF,
        work.MEASURE,
        work.RUN_HERE,
    ),
)
# A placement or a training without its request has nothing to show.
PLACEMENT = ResultKind(
    "placement",
    _named_by("placement_request"),
    named_results.PLACEMENT_KINDS,
    (work.PLACE, work.PLACEMENT_FRONTIER, work.DIVISIONS),
    "Place {}",
    validate,
)
TRAINING = ResultKind(
    "training",
    _named_by("strategy_request"),
    named_results.TRAINING_KINDS,
    (work.STRATEGY, work.STRATEGY_STUDY),
    "Strategy of {}",
)
RUN = ResultKind("run", _run_names, (), (work.TRAIN, work.TRAIN_ON))
RESULT_KINDS = (MODEL, SCENARIO, PLACEMENT, TRAINING, RUN)
