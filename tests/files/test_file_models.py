"""How values stand in files: what was added to a format is left out at its default, a whole GPU is null."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.paths import ROOT
from torchsplit_core.files import FORMATS, read_file, write_text
from torchsplit_core.files.contract import value_class
from torchsplit_core.files.file_models import ValueField, file_model, to_data, value_fields, values_in


def fields_within(kind: type) -> Iterator[tuple[type, ValueField]]:
    for field in value_fields(kind):
        yield kind, field
        for inner in values_in(field.annotation):
            yield from fields_within(inner)


FIELDS = {
    (kind, field.name): field
    for name in FORMATS
    if name != "torchsplit.graph"
    for kind, field in fields_within(value_class(name))
}
ADDED = {place: field for place, field in FIELDS.items() if field.form.added}


@pytest.mark.parametrize(("kind", "name"), ADDED, ids=str)
def test_what_is_left_out_is_read_back_as_its_default(kind, name):
    field = ADDED[kind, name]
    described = file_model(kind).model_json_schema()["properties"][field.key(False)]
    assert described["default"] == to_data(field.default, False, complete=True)


def test_an_added_field_is_written_where_it_says_something():
    request = read_file(ROOT / "examples" / "plan_request.json")[1]
    (plain, *_) = json.loads(write_text(request))["gpus"]
    whole = replace(request, gpus=(replace(request.gpus[0], mig=False), *request.gpus[1:]))
    (left_whole, *_) = json.loads(write_text(whole))["gpus"]
    assert left_whole == {**plain, "mig": False} and "mig" not in plain


def test_the_options_of_a_partition_are_written_whole():
    request = read_file(ROOT / "examples" / "partition_request.json")[1]
    assert set(json.loads(write_text(request))["solver"]) == {"time_limit_s", "plan_at"}


def test_a_whole_gpu_is_null_in_files_and_a_text_among_values():
    nulls = {(kind.__name__, name) for (kind, name), field in FIELDS.items() if field.form.null is not None}
    kinds = "Point LlmPoint PlannedSlice MeasuredPoint StateInstance MappedInstance TransitionStep"
    assert nulls == {(kind, "profile") for kind in kinds.split()}
    measured = read_file(ROOT / "examples" / "measurement.json")[1]
    whole = replace(measured, points=(replace(measured.points[0], profile=""),))
    assert json.loads(write_text(whole))["points"][0]["profile"] is None
