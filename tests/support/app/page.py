"""A page as its user drives it: what stands there, its buttons and fields. After each step the page must stand."""

from typing import Any

from streamlit.testing.v1 import AppTest

from tests.support.paths import ROOT
from torchsplit_core.pictures.numbers import THIN
from torchsplit_core.values import PlanOutcome, PlanRequest
from torchsplit_core.workspace.store import Workspace

KINDS = (
    "title", "header", "subheader", "markdown", "html", "info", "success", "warning", "error", "caption", "text",
)  # fmt: skip


def open_page(
    name: str,
    workspace: Workspace | str | None = None,
    *,
    session: dict[str, Any] | None = None,
    **query: str,
) -> AppTest:
    """The page in a new session, by an address with these parameters."""
    page = AppTest.from_file(str(ROOT / "pages" / f"{name}.py"), default_timeout=120)
    if workspace is not None:
        page.query_params["workspace"] = workspace if isinstance(workspace, str) else workspace.id
    page.query_params.update(query)
    for key, value in (session or {}).items():
        page.session_state[key] = value
    return run(page)


def run(page: AppTest) -> AppTest:
    page.run()
    assert not page.exception, page.exception
    return page


def said(page: AppTest) -> str:
    """All text of the page and its tables of HTML, without the escapes of Markdown and with plain spaces."""
    elements = (element for kind in KINDS for element in page.get(kind))
    text = "\n".join(str(getattr(element, "value", None) or element.proto.body) for element in elements)
    return text.replace("\\", "").replace(THIN, " ")


def field(page: AppTest, kind: str, label: str) -> Any:
    """The field of that kind whose label is this, or begins so."""
    fields = (element for element in getattr(page, kind) if element.label.startswith(label))
    return min(fields, key=lambda element: len(element.label))


def button(page: AppTest, label: str) -> Any:
    return next(button for button in page.button if button.label == label)


def press(page: AppTest, label: str) -> AppTest:
    button(page, label).click()
    return run(page)


def press_key(page: AppTest, key: str) -> AppTest:
    page.button(key=key).click()
    return run(page)


def turn_to(page: AppTest, key: str, value: Any) -> AppTest:
    """The page after the session's `key` was set, as by its tabs."""
    page.session_state[key] = value
    return run(page)


def metrics(page: AppTest) -> dict[str, str]:
    return {metric.label: metric.value.replace(THIN, " ") for metric in page.metric}


def put_plan(workspace: Workspace, request: PlanRequest, outcome: PlanOutcome, name: str = "review") -> None:
    """Store a request and what answers it."""
    workspace.put("plan_request", name, request)
    workspace.put("plan", name, outcome)
