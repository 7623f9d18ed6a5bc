"""A session's view state of the explorer: open groups, selection, overlay. It outlives a reload."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from app.session.workspace import remember
from torchsplit_core.drawing import view as views
from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.drawing.view import MOST_ITEMS, View, ViewItem, initially_open
from torchsplit_core.workspace.store import Workspace


@dataclass(frozen=True, slots=True)
class ExplorerState:
    """One session's view state of one model.

    `focus` has three lines for the explorer: a number that makes it go to the same place again, "go" or "stay", and the
    id of what is selected (the rest of the text, since an id may hold line breaks).
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
    """The view state stored under `place`: of this session, else of the workspace, else the first view."""
    key = _key(place)
    if key not in st.session_state:
        stored = workspace.setting(key)
        st.session_state[key] = _parse(stored, hierarchy) or ExplorerState(initially_open(hierarchy))
    state: ExplorerState = st.session_state[key]
    return state


def is_stored(workspace: Workspace, place: str) -> bool:
    """Whether the workspace has a view state under `place`."""
    return workspace.setting(_key(place)) is not None


def save_state(workspace: Workspace, place: str, state: ExplorerState) -> None:
    """Keep a view state in the session and, as far as it outlives a reload, in the workspace."""
    st.session_state[_key(place)] = state
    groups = {"opened": sorted(state.opened), "unfolded": sorted(state.unfolded)}
    selected = {"item": state.item, "node": state.node, "overlay": state.overlay}
    remember(workspace, _key(place), {**groups, **selected})


def apply_action(
    state: ExplorerState, hierarchy: Hierarchy, shown: View, action: Mapping[str, Any]
) -> ExplorerState:
    """The view state after an action of the user; an action on something that is gone changes nothing."""
    kind, name, node = action.get("kind"), action.get("item"), action.get("node")
    item = next((candidate for candidate in shown.items if candidate.id == name), None)
    after = replace(state, refusal="")
    if kind == "open" and item is not None and item.expandable:
        inside = views.groups_to_open(hierarchy, item)
        # The opened group stays selected, under the id of its frame.
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
        after = replace(after, focus=_next_focus(state, item.id, stay=True))
        after = replace(after, item=item.id, node=None, region=None)
    elif kind == "reveal" and isinstance(node, str) and node in hierarchy.index:
        opened = state.opened | views.groups_around(hierarchy, node)
        after = replace(after, opened=opened, focus=_next_focus(state, f"node:{node}"))
        after = replace(after, node=node, item=f"node:{node}", region=None)
    elif kind == "reset":
        after = replace(after, opened=initially_open(hierarchy), unfolded=frozenset())
    elif kind == "all":
        after = replace(after, opened=frozenset(hierarchy.groups))
    if len(after.opened) > len(state.opened):
        count = count_boxes(hierarchy, after.opened)
        if count > MOST_ITEMS:
            refusal = (
                f"That would draw {count} boxes at once; up to {MOST_ITEMS} are. Open one group at a time."
            )
            return replace(state, refusal=refusal)
    return after


def select(
    workspace: Workspace, place: str, hierarchy: Hierarchy, regions: int, chosen: Mapping[str, Any]
) -> None:
    """Store the selection that the explorer reports, without what the graph, of so many `regions`, lacks."""
    region = chosen.get("region")
    region = region if type(region) is int and 0 <= region < regions else None
    node, item = _if_known(chosen.get("node"), hierarchy.index), _text(chosen.get("item"))
    before = load_state(workspace, place, hierarchy)
    save_state(workspace, place, replace(before, node=node, item=item, region=region))


def refocus(workspace: Workspace, place: str, hierarchy: Hierarchy) -> None:
    """Make an explorer that is mounted anew go to the selection. Only for full runs of the page: in a run of the
    fragment alone each selection would send all data again."""
    before = load_state(workspace, place, hierarchy)
    if before.item is not None and (before.focus or "\n\n").split("\n", 2)[2] != before.item:
        save_state(workspace, place, replace(before, focus=_next_focus(before, before.item)))


def set_overlay(workspace: Workspace, place: str, hierarchy: Hierarchy, name: str) -> None:
    """Store the chosen overlay."""
    save_state(workspace, place, replace(load_state(workspace, place, hierarchy), overlay=name))


def count_boxes(hierarchy: Hierarchy, opened: frozenset[str]) -> int:
    """An upper bound on the boxes drawn with these groups open."""
    open_groups = (
        hierarchy.groups[group] for group in (Hierarchy.ROOT, *opened) if group in hierarchy.groups
    )
    return sum(len(group.parts) for group in open_groups)


def _unfold(before: ExplorerState, hierarchy: Hierarchy, item: ViewItem) -> dict[str, Any]:
    """Show the blocks of a list singly: the parent of a fold, or a closed list itself, which it opens."""
    if item.kind == "fold":
        parent = hierarchy.groups[item.groups[0]].parent
        return {"unfolded": before.unfolded | {str(parent)}}
    return {"unfolded": before.unfolded | {item.id}, "opened": before.opened | {item.id}}


def _next_focus(before: ExplorerState, name: str, *, stay: bool = False) -> str:
    """What the explorer selects next; with `stay` it does not move there."""
    number = int(before.focus.partition("\n")[0]) + 1 if before.focus else 1
    return f"{number}\n{'stay' if stay else 'go'}\n{name}"


def _parse(stored: Any, hierarchy: Hierarchy) -> ExplorerState | None:
    """A stored view state as far as it fits the graph, which may have changed since."""
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
