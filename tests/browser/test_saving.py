"""The buttons below a table of HTML: what leaves the page as a file and to the clipboard."""

from pathlib import Path

import pytest

from app.components.saving import HTML, script

pytestmark = pytest.mark.browser

TABLE = """<table><tr><th>model</th><th colspan="2">req/s</th></tr>
<tr><td><i></i>=cmd()</td><td>12\u202f345.5</td><td>-40\u202f%</td></tr>
<tr><td>a, "b"</td><td>1\u202f000\u202f000</td><td>7\u202fms</td></tr></table>"""
MOUNT = """async ([script, buttons, table]) => {
  document.body.innerHTML = `<div class="st-key-saved-one">${table}<div id="parent">${buttons}</div></div>`;
  const made = await import(`data:text/javascript;charset=utf-8,${encodeURIComponent(script)}`);
  const data = { what: "Models", file: "models", lead: "Save table", instead: "CSV", listed: true };
  for (let run = 0; run < 2; run++) made.default({ parentElement: document.getElementById("parent"), data });
  Object.defineProperty(navigator, "clipboard",
    { value: { writeText: async text => { window.copied = text; } }, configurable: true });
}"""


def test_a_table_leaves_as_it_reads_and_runs_nothing(session):
    page = session()
    page.goto("about:blank")
    page.evaluate(MOUNT, [script(), HTML, TABLE])
    # Drawn twice, its buttons are there once.
    assert page.get_by_role("button").all_inner_texts() == ["CSV", "Copy"]
    with page.expect_download() as written:
        page.get_by_role("button", name="Models as CSV").click()
    assert written.value.suggested_filename == "models.csv"
    assert Path(written.value.path()).read_text().splitlines() == [
        "model,req/s,",
        "'=cmd(),12345.5,-40 %",
        '"a, ""b""",1000000,7 ms',
    ]
    page.get_by_role("button", name="Copy Models").click()
    page.wait_for_function("window.copied")
    assert page.evaluate("window.copied").splitlines()[1] == "'=cmd()\t12345.5\t-40 %"
    # Where there is no clipboard and no other way, the file is named.
    page.evaluate(
        "() => { Object.defineProperty(navigator, 'clipboard', { value: undefined }); "
        "document.execCommand = () => false; }"
    )
    page.get_by_role("button", name="Copy Models").click()
    page.get_by_text("The browser does not let this page copy: take the CSV.").wait_for()
