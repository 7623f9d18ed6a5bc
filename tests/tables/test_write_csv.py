"""Profiles to a table and back: every field of every row, names that a spreadsheet would run, failures."""

import csv
import io
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.paths import ROOT
from torchsplit_core.files import read_text
from torchsplit_core.profiling.library import library_profiles
from torchsplit_core.tables import merge_profiles, read_profile_csv, write_profile_csv
from torchsplit_core.tables.cell_parsing import escape_formula, unescape_formula
from torchsplit_core.tables.write_csv import LEADING_COLUMNS, lists_csv, rows_csv
from torchsplit_core.values import (
    InputFault,
    LatencyPercentiles,
    MemoryParts,
    Pace,
    Percentile,
    Profile,
    ProfileFailure,
    ProfileRow,
)

ROW = ProfileRow("whole", "A100-80GB", "3g.40gb", 8, 2, 123.456789, 7.1, None, None, None, "measured")
FULL = replace(
    ROW,
    stage="cut1.1of2",
    profile="1g.20gb",
    low_rps=0.1 + 0.2,
    high_rps=1e9 / 3,
    memory_gib=0.0,
    basis="emulated",
    device="sm:16@1",
    percentiles_ms=LatencyPercentiles(
        31, Percentile(1 / 3, 0.3, 0.4), Percentile(2.0, None, 2.5), Percentile(3.0)
    ),
    memory_parts_gib=MemoryParts(1.5, 0.25, 0.0, 0.3, "measured"),
    pace=Pace(1 / 7, 2.5, 0.0),
)
FAILURE = ProfileFailure(
    "whole", "CPU", None, 64, 1, "crashed", "=killed, by\nsignal 9, said it's “over”", "cpu"
)


def back(profiles: list[Profile]) -> list[Profile]:
    return list(read_profile_csv(write_profile_csv(profiles)).profiles)


def test_rows_failures_the_library_and_the_example_come_back():
    profile = Profile("sample:bert", "abc", {"host": "h"}, (ROW, FULL), (), (FAILURE,))
    (read,) = back([profile])
    assert read.rows == profile.rows
    assert read.failures == profile.failures
    assert read.source == "import:sample:bert"
    library = list(library_profiles())
    assert [profile.rows for profile in back(library)] == [profile.rows for profile in library]
    text = (ROOT / "examples" / "profile.json").read_text(encoding="utf-8")
    example = read_text(text, expected="torchsplit.profile")[1]
    assert len(example.rows) > 10
    assert back([example])[0].rows == example.rows


def test_a_sequence_length_is_a_column_where_a_row_has_one_and_tells_points_apart():
    assert "sequence_length" not in write_profile_csv([Profile("import:m", "", {}, (FULL,))])
    rows = (ROW, replace(ROW, sequence_length=128), replace(ROW, sequence_length=512, latency_ms=9.0))
    failed = replace(FAILURE, sequence_length=512)
    (read,) = back([Profile("import:m", "", {}, rows, (), (FAILURE, failed))])
    assert (read.rows, read.failures) == (rows, (FAILURE, failed))


def test_the_first_columns_are_those_of_the_measured_library():
    lines = write_profile_csv([Profile("library:m", "", {}, (ROW,))]).splitlines()
    assert lines[0].startswith("model,compute_slices,batch_size,processes,throughput_rps,latency_ms,")
    assert lines[1].startswith("m,3,8,2,123.456789,7.1,")
    assert "timed_runs" not in lines[0]


def test_a_failure_is_a_row_of_zero_with_its_reason():
    text = write_profile_csv([Profile("library:m", "", {}, (), (), (FAILURE,))])
    (cells,) = csv.DictReader(io.StringIO(text))
    assert (cells["throughput_rps"], cells["latency_ms"]) == ("0", "")
    assert cells["failure_reason"] == "crashed"
    assert cells["failure_message"].startswith("'=killed")


def test_profiles_of_one_name_stay_apart():
    profiles = [Profile("import:m", "", {}, (ROW,)), Profile("library:m", "", {}, (FULL,))]
    assert [profile.rows for profile in back(profiles)] == [(ROW,), (FULL,)]


def test_no_profiles_are_a_header_alone():
    assert write_profile_csv([]) == ",".join(LEADING_COLUMNS) + "\n"


def test_rows_of_cores_and_of_a_whole_gpu_come_back():
    rows = (replace(ROW, gpu_type="CPU", profile="1c"), replace(ROW, gpu_type="CPU", profile="16c"))
    assert back([Profile("import:m", "", {}, rows)])[0].rows == rows
    with pytest.raises(InputFault, match="is '1c', not a slice of A100-80GB"):
        back([Profile("import:m", "", {}, (replace(ROW, profile="1c"),))])
    (read,) = back([Profile("import:m", "", {}, (replace(ROW, profile=None),))])
    assert read.rows[0].profile is None


@pytest.mark.parametrize("name", ["=1+1", "+a", "-a", "@a", "'=1+1", "''@x", "'a", "a=b", "'"])
def test_names_are_safe_in_a_spreadsheet_and_come_back(name):
    text = write_profile_csv([Profile(f"import:{name}", "", {}, (ROW,))])
    for line in csv.reader(io.StringIO(text)):
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in line)
    assert read_profile_csv(text).profiles[0].source == f"import:{name}"


@given(st.text())
def test_guarding_is_undone_exactly(text):
    assert unescape_formula(escape_formula(text)) == text
    assert not escape_formula(text).startswith(("=", "+", "-", "@", "\t", "\r"))


figures = st.floats(1e-6, 1e9, allow_nan=False)
names = (
    st.text(st.characters(min_codepoint=33, exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp")), min_size=1)
    .map(lambda text: text[:50])
    .filter(lambda text: text.lower() not in ("na", "n/a", "none", "null", "-", "--", "#n/a"))
)
percentiles = st.builds(
    Percentile, figures, st.none() | st.floats(0.001, 10), st.none() | st.floats(1e-6, 1e9, allow_nan=False)
)
rows = st.builds(
    ProfileRow,
    stage=names,
    gpu_type=st.just("A100-80GB"),
    profile=st.sampled_from([None, "1g.10gb", "1g.20gb", "7g.80gb"]),
    batch_size=st.integers(1, 4096),
    processes=st.integers(1, 7),
    throughput_rps=st.floats(100, 1e6),
    latency_ms=figures,
    low_rps=st.none() | st.floats(1, 100),
    high_rps=st.none() | st.floats(1e6, 1e9),
    memory_gib=st.none() | figures,
    basis=st.sampled_from(["measured", "emulated", "estimated"]),
    device=st.none() | names,
    percentiles_ms=st.none()
    | st.builds(LatencyPercentiles, st.integers(1, 10_000), percentiles, percentiles, percentiles),
    memory_parts_gib=st.none()
    | st.builds(MemoryParts, figures, figures, figures, figures, st.sampled_from(["measured", "estimated"])),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.dictionaries(
    names,
    st.lists(
        rows, min_size=1, max_size=5,
        unique_by=lambda row: (row.stage, row.profile, row.batch_size, row.processes),
    ),
    min_size=1,
    max_size=3,
))  # fmt: skip
def test_any_rows_come_back(by_name):
    profiles = [Profile(f"import:{name}", "", {}, tuple(found)) for name, found in by_name.items()]
    read = back(profiles)
    assert [(item.source, item.rows) for item in read] == [(item.source, item.rows) for item in profiles]


def test_files_of_one_model_are_joined_also_at_two_sequence_lengths():
    other = replace(ROW, batch_size=16)
    first = Profile("import:m", "", {"origin": "a.csv"}, (ROW,))
    second = Profile("import:m", "h", {"origin": "b.csv"}, (ROW, other), (), (FAILURE,))
    alone = Profile("import:n", "", {}, (ROW,))
    merged = merge_profiles([first, alone, second])
    assert merged[1] is alone
    assert merged[0].rows == (ROW, other)
    assert merged[0].failures == (FAILURE,)
    assert merged[0].architecture_hash == "h"
    assert merged[0].environment["origin"] == "a.csv, b.csv"
    rows = [replace(ROW, sequence_length=128), replace(ROW, sequence_length=512, latency_ms=9.0)]
    (merged,) = merge_profiles([Profile("import:m", "", {}, (row,)) for row in rows])
    assert merged.rows == tuple(rows)


def test_files_of_one_model_that_contradict_each_other_are_refused():
    first = Profile("import:m", "g", {}, (ROW,))
    with pytest.raises(InputFault, match="has two measurements of"):
        merge_profiles([first, replace(first, rows=(replace(ROW, latency_ms=1.0),))])
    with pytest.raises(InputFault, match="has profiles of 2 architectures"):
        merge_profiles([first, replace(first, architecture_hash="h")])


def test_rows_are_told_to_as_many_digits_as_asked():
    row = {"a": 2 / 3, "b": True, "c": None, "d": "x,y", "e": 7, "f": False}
    assert rows_csv((*row, "g"), [row]) == 'a,b,c,d,e,f,g\n0.666667,yes,,"x,y",7,no,\n'
    assert rows_csv(("a",), [{"a": 1e9 / 3}], digits=9) == "a\n333333333\n"
    assert rows_csv(("a",), [{"a": 1e9 / 3}]) == "a\n3.33333e+08\n"


@pytest.mark.parametrize("mark", ["=", "+", "-", "@", "\t", "\r"])
def test_no_text_of_any_table_is_a_formula(mark):
    """Neither a cell nor a head; a number written as text stays one."""
    text = f'{mark}HYPERLINK("http://x")'
    rows = csv.reader(io.StringIO(rows_csv(("a", text), [{"a": text, text: -1.5}]), newline=""))
    assert list(rows) == [["a", f"'{text}"], [f"'{text}", "-1.5"]]
    found = csv.reader(io.StringIO(lists_csv(("a",), [(text,), ("-2",), ("+1.5e-3",), ("-2+3",), (None,)])))
    if mark != "\r":
        assert list(found) == [["a"], [f"'{text}"], ["-2"], ["+1.5e-3"], ["'-2+3"], [""]]


def test_rows_have_no_other_columns():
    with pytest.raises(ValueError, match="have no b"):
        rows_csv(("a",), [{"a": 1, "b": 2}])


def test_tables_are_written_here_and_by_the_pages_helper_alone():
    """Whatever else writes CSV would have to guard its texts itself."""
    found = {
        str(path.relative_to(ROOT))
        for room in ("torchsplit_core", "app", "pages")
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"csv\.(writer|DictWriter)|\.to_csv\(", path.read_text(encoding="utf-8"))
    }
    assert found == {"torchsplit_core/tables/write_csv.py", "app/components/saving.py"}
