"""What the browser reports of rows of fields: every edit is taken once, however often it is reported."""

import pytest

from app.components.field_rows import Edit, edits_since


def entry(field, value, since):
    return {"row": "0", "field": field, "value": value, "since": since}


def test_a_report_repeats_what_is_not_answered_and_each_edit_is_taken_once():
    first = {"serial": 5, "edits": [entry("remove", True, 5)]}
    second = {"serial": 9, "edits": [entry("remove", True, 5), entry("demand", "3", 9)]}
    removed, demanded = Edit("0", "remove", True), Edit("0", "demand", "3")
    assert edits_since(first, 0) == (removed,)
    assert edits_since(second, 5) == (demanded,)
    # The page may have read the second report alone.
    assert edits_since(second, 0) == (removed, demanded)


@pytest.mark.parametrize("report", [
    None, [], {}, {"edits": "all"}, {"edits": ["0"]}, {"edits": [{"row": "0"}]},
    {"edits": [entry("demand", "3", None)]},
])  # fmt: skip
def test_what_is_no_report_has_no_edits(report):
    assert edits_since(report, 0) == ()
