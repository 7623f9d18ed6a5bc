"""What a session looks at in the explorer: open groups, selection, overlay; kept over a reload."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from app.session.workspace import remember
from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.drawing.view import (
    MOST_ITEMS,
    View,
    ViewItem,
    groups_around,
    groups_to_open,
    initially_open,
)
from torchsplit_core.workspace.store import Workspace


@dataclass(frozen=True, slots=True)
class ExplorerState:
    """One session's look at one model.

    `focus` has three lines for the explorer: a number, so that it goes to the same place again, "go" or
    "stay", and the id of what is selected (the rest of the text, for an id may hold line breaks).
    """

    opened: frozenset[str]
    unfolded: frozenset[str] = frozenset()
    item: str | None = None
    node: str | None = None
    region: int | None = None
    overlay: str = "time"
    focus: str | None = None
    refusal: str = ""


def load_state(workspace: Workspace, place: str, hierarchy: Hierarchy) -> ExplorerState:
    """The look at a model under a name: of this session, else as it was stored, else the first view."""
    key = _key(place)
    if key not in st.session_state:
        stored = workspace.setting(key)
        st.session_state[key] = _parse(stored, hierarchy) or ExplorerState(initially_open(hierarchy))
    state: ExplorerState = st.session_state[key]
    return state


def is_stored(workspace: Workspace, place: str) -> bool:
    """Whether anything was ever looked at under the name."""
    return workspace.setting(_key(place)) is not None


def save_state(workspace: Workspace, place: str, state: ExplorerState) -> None:
    """Keep a look in the session and, as far as it outlives a reload, in the workspace."""
    st.session_state[_key(place)] = state
    remember(
        workspace,
        _key(place),
        {
            "opened": sorted(state.opened),
            "unfolded": sorted(state.unfolded),
            "item": state.item,
            "node": state.node,
            "overlay": state.overlay,
        },
    )


def apply_action(
    state: ExplorerState, hierarchy: Hierarchy, shown: View, action: Mapping[str, Any]
) -> ExplorerState:
    """The look after the user opened, closed or revealed something. What is not there (any more) changes nothing."""
    kind, name, node = action.get("kind"), action.get("item"), action.get("node")
    item = next((candidate for candidate in shown.items if candidate.id == name), None)
    after = replace(state, refusal="")
    if kind == "open" and item is not None and item.expandable:
        inside = groups_to_open(hierarchy, item)
        # What was opened stays selected, under the name of its frame.
        frame = item.id if item.id in inside else max(inside, key=len)
        after = replace(after, opened=state.opened | inside, item=frame, node=None, region=None)
        after = replace(after, focus=_next_focus(state, frame, stay=True))
    elif kind == "unfold" and item is not None and item.repeats > 1:
        after = replace(after, **_unfold(state, hierarchy, item))
    elif kind == "close" and item is not None and item.open:
        # The session may still hold groups of another graph of this name.
        known = (group for group in state.opened if group in hierarchy.groups)
        inside = frozenset(group for group in known if item.id in hierarchy.enclosing_groups(group))
        after = replace(after, opened=state.opened - inside, unfolded=state.unfolded - {item.id})
        after = replace(
            after, item=item.id, node=None, region=None, focus=_next_focus(state, item.id, stay=True)
        )
    elif kind == "reveal" and isinstance(node, str) and node in hierarchy.index:
        opened = state.opened | groups_around(hierarchy, node)
        after = replace(after, opened=opened, focus=_next_focus(state, f"node:{node}"))
        after = replace(after, node=node, item=f"node:{node}", region=None)
    elif kind == "reset":
        after = replace(after, opened=initially_open(hierarchy), unfolded=frozenset())
    elif kind == "all":
        after = replace(after, opened=frozenset(hierarchy.groups))
    if len(after.opened) > len(state.opened):
        count = count_boxes(hierarchy, after.opened)
        if count > MOST_ITEMS:
            return replace(
                state,
                refusal=f"That would draw {count} boxes at once; up to {MOST_ITEMS} are. Open one group at a time.",
            )
    return after


def select(
    workspace: Workspace, place: str, hierarchy: Hierarchy, regions: int, chosen: Mapping[str, Any]
) -> None:
    """Keep what the explorer says is selected; what the graph (of so many regions) has not is dropped."""
    region = chosen.get("region")
    changed = replace(
        load_state(workspace, place, hierarchy),
        node=_if_known(chosen.get("node"), hierarchy.index),
        item=_text(chosen.get("item")),
        region=region if type(region) is int and 0 <= region < regions else None,
    )
    save_state(workspace, place, changed)


def refocus(workspace: Workspace, place: str, hierarchy: Hierarchy) -> None:
    """Have an explorer that is mounted anew go to what was selected. For full runs of the page only.

    In every run it would send all data again for each selection.
    """
    before = load_state(workspace, place, hierarchy)
    if before.item is not None and (before.focus or "\n\n").split("\n", 2)[2] != before.item:
        save_state(workspace, place, replace(before, focus=_next_focus(before, before.item)))


def set_overlay(workspace: Workspace, place: str, hierarchy: Hierarchy, name: str) -> None:
    """Keep the overlay chosen."""
    save_state(workspace, place, replace(load_state(workspace, place, hierarchy), overlay=name))


def count_boxes(hierarchy: Hierarchy, opened: frozenset[str]) -> int:
    """An upper bound on the boxes drawn with these groups open."""
    groups = [
        hierarchy.groups[Hierarchy.ROOT],
        *(hierarchy.groups[g] for g in opened if g in hierarchy.groups),
    ]
    return sum(len(group.parts) for group in groups)


def _unfold(before: ExplorerState, hierarchy: Hierarchy, item: ViewItem) -> dict[str, Any]:
    """The list whose blocks are to stand singly: of a fold its parent, of a closed list itself, opened."""
    if item.kind == "fold":
        parent = hierarchy.groups[item.groups[0]].parent
        return {"unfolded": before.unfolded | {str(parent)}}
    return {"unfolded": before.unfolded | {item.id}, "opened": before.opened | {item.id}}


def _next_focus(before: ExplorerState, name: str, *, stay: bool = False) -> str:
    """What the explorer selects next, numbered so that it does again; with `stay` without moving to it."""
    number = int(before.focus.partition("\n")[0]) + 1 if before.focus else 1
    return f"{number}\n{'stay' if stay else 'go'}\n{name}"


def _parse(stored: Any, hierarchy: Hierarchy) -> ExplorerState | None:
    """A stored look, as far as it fits the graph: that may be another one by now."""
    if not isinstance(stored, dict):
        return None
    item = _text(stored.get("item"))
    return ExplorerState(
        opened=_groups(stored.get("opened"), hierarchy) or initially_open(hierarchy),
        unfolded=_groups(stored.get("unfolded"), hierarchy),
        item=item,
        node=_if_known(stored.get("node"), hierarchy.index),
        overlay=_text(stored.get("overlay")) or "time",
        focus=None if item is None else f"1\ngo\n{item}",
    )


def _groups(stored: Any, hierarchy: Hierarchy) -> frozenset[str]:
    """Those of a stored list that the hierarchy has."""
    names = stored if isinstance(stored, list) else []
    return frozenset(name for name in names if _if_known(name, hierarchy.groups) is not None)


def _if_known(name: Any, names: Container[str]) -> str | None:
    return name if isinstance(name, str) and name in names else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _key(place: str) -> str:
    return f"explorer {place}"
