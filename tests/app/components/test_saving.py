"""What leaves the page: tables as CSV that a spreadsheet cannot run, under names that any system takes."""

import pandas as pd
import pytest

from app.components import saving
from app.components.saving import csv_of, file_name


def test_a_table_leaves_exact_and_runs_nothing():
    frame = pd.DataFrame({"model": ["bert", "=1+1", "@x"], "=req/s": [1 / 3, None, 12345.678901]})
    head, first, second, third = csv_of(frame).splitlines()
    assert head == "model,'=req/s" and first == f"bert,{1 / 3!r}"
    assert second == "'=1+1," and third == "'@x,12345.678901"


def test_a_table_goes_to_the_clipboard_between_tabs_unless_it_is_large(monkeypatch):
    mounted = []
    monkeypatch.setattr(saving, "_component", lambda: lambda data, key: mounted.append(data))
    frame = pd.DataFrame({"model": ["bert", "=1+1"], "req/s": [0.1 + 0.2, 2.0]})
    saving.csv_button(frame, "a b", key="one", alt="Models")
    (data,) = mounted
    assert data["text"].splitlines() == ["model\treq/s", f"bert\t{0.1 + 0.2!r}", "'=1+1\t2.0"]
    assert data["what"] == "Models"
    saving.csv_button(pd.DataFrame({"a": range(saving.MOST_COPIED + 1)}), "large", key="two", alt="Many")
    assert len(mounted) == 1


@pytest.mark.parametrize(("name", "file"), [
    ("sample:fastpitch@large", "sample-fastpitch@large"),
    ("nodes/a b\\c", "nodes-a-b-c"),
    ("../..", "file"),
    ("\n", "file"),
    ("Modèle 7", "Modèle-7"),
])  # fmt: skip
def test_names_of_files_are_the_same_everywhere(name, file):
    assert file_name(name) == file
