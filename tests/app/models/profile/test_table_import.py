"""Tables of others on the Profile page: recognised, mapped, refused in one message, stored without losing anything."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from app.models.profile import table_import
from tests.support.app.page import button, said
from tests.support.app.profile_page import opened
from tests.support.app.profiles import measured
from torchsplit_core.files import write_text
from torchsplit_core.tables import Imported
from torchsplit_core.workspace.store import Workspace

pytestmark = pytest.mark.slow

Open = Callable[..., AppTest]
PLAIN = (
    "model,compute_slices,batch_size,throughput_rps,latency_ms\n"
    "alpha,1,1,100,10\nalpha,7,1,300,4\nbeta,1,1,0,\nbeta,7,2,80,25\n"
)
OTHER = "net;MIG size;bs;qps\nalpha;1;1;100,5\n"
BAD = "model,compute_slices,batch_size,throughput_rps\nalpha,1,1,100\nalpha,1,x,100\nalpha,1,4,-3\n"
PERF = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency\n"
    "1,100,10,20,5,30,9000,20,1,9000,9500,10000,11000\n"
)


def with_file(page: Open, workspace: Workspace, name: str, text: str) -> AppTest:
    """The Import tab with a file in it."""
    tab = opened(page, workspace, "Import")
    tab.file_uploader(key=table_import.UPLOADER).upload(name, text.encode(), "text/csv").run()
    assert not tab.exception
    return tab


def stored(workspace: Workspace) -> list[str]:
    return sorted(artifact.name for artifact in workspace.artifacts("profile"))


def pressed(page: AppTest) -> AppTest:
    button(page, "Import").click().run()
    assert not page.exception
    return page


def test_a_table_of_our_words_is_imported_as_it_is(page, workspace):
    tab = with_file(page, workspace, "rows.csv", PLAIN)
    assert "rows.csv** is a table of measurements: 4 rows, 5 columns" in said(tab)
    assert len(tab.dataframe[0].value) == 4
    text = said(pressed(tab))
    assert "Imported 3 rows and 1 points that failed as import:alpha, import:beta" in text
    assert stored(workspace) == ["import:alpha", "import:beta"]
    beta = workspace.get("profile", "import:beta")
    assert [failure.reason for failure in beta.failures] == ["out_of_memory"] and len(beta.rows) == 1


def test_other_words_are_guessed_or_mapped(page, workspace):
    tab = with_file(page, workspace, "rows.csv", OTHER)
    by_label = {box.label: box for box in tab.selectbox}
    assert by_label["model"].value == "net" and by_label["batch size"].value == "bs"
    assert by_label["throughput rps"].value == "qps"
    if by_label["compute slices (optional)"].value != "MIG size":
        by_label["compute slices (optional)"].set_value("MIG size").run()
    pressed(tab)
    (row,) = workspace.get("profile", "import:alpha").rows
    assert (row.profile, row.batch_size, row.throughput_rps) == ("1g.10gb", 1, 100.5)


def test_a_table_without_a_slice_or_model_asks_for_them(page, workspace):
    tab = with_file(page, workspace, "mine.csv", "bs,qps\n1,100\n2,180\n")
    assert "profile-import-slice" in [box.key for box in tab.selectbox]
    tab.selectbox(key="profile-import-slice").set_value("3g.40gb").run()
    pressed(tab)
    assert stored(workspace) == ["import:mine"]
    assert {row.profile for row in workspace.get("profile", "import:mine").rows} == {"3g.40gb"}


def test_rows_at_fault_are_one_message_and_nothing_is_stored(page, workspace):
    found = pressed(with_file(page, workspace, "rows.csv", BAD))
    assert len(found.error) == 1 and not stored(workspace)
    text = said(found)
    assert "line 3" in text and "line 4" in text and "--skip-bad" not in text
    assert "tick the box above" in text
    found.checkbox(key="profile-import-skip").check().run()
    assert "2 rows were left out" in said(pressed(found))
    assert len(workspace.get("profile", "import:alpha").rows) == 1


def test_a_triton_table_is_recognised_and_asked_for_what_it_lacks(page, workspace):
    tab = with_file(page, workspace, "resnet.csv", PERF)
    assert "perf_analyzer's table" in said(tab)
    tab.number_input(key="profile-import-batch").set_value(4).run()
    pressed(tab)
    (row,) = workspace.get("profile", "import:resnet").rows
    assert (row.batch_size, row.latency_ms) == (4, 10.0)


def test_a_profile_file_is_stored_beside_another_of_its_name(page, workspace):
    workspace.put("profile", "sample:m", measured("sample:m"))
    text = write_text(measured("sample:m", speed=2.0))
    tab = with_file(page, workspace, "later.json", text)
    assert "later.json** is a profile of sample:m: 15 rows" in said(tab)
    button(tab, "Import this file").click().run()
    assert stored(workspace) == ["sample:m", "sample:m (later)"]


@pytest.mark.parametrize("text", ["", "one column\n1\n", "{broken", "model,batch_size\n"])
def test_what_is_no_table_is_one_message(text, page, workspace):
    tab = with_file(page, workspace, "rows.csv", text or " ")
    if not tab.error:
        pressed(tab)
    assert len(tab.error) == 1 and not stored(workspace)


def test_an_import_never_covers_other_figures(workspace):
    first = replace(measured("import:m"), source="import:m")
    other = replace(measured("import:m", speed=2.0), source="import:m")
    assert table_import.store(workspace, Imported((first,)), "a") == ("import:m",)
    assert table_import.store(workspace, Imported((first,)), "a") == ("import:m",)
    assert table_import.store(workspace, Imported((other,)), "b") == ("import:m (b)",)
    third = replace(other, rows=other.rows[:3])
    assert table_import.store(workspace, Imported((third,)), "b") == ("import:m (b, 2)",)
    assert workspace.get("profile", "import:m").rows == first.rows


def test_the_shipped_library_is_one_press_away(page, workspace):
    tab = opened(page, workspace, "Import")
    assert "1 747 rows" in said(tab)
    tab.button(key="profile-import-library").click().run()
    assert len(stored(workspace)) == 11 and "Added 11 profiles" in said(tab)
    assert "Add the measured A100 library" not in [element.label for element in tab.button]
