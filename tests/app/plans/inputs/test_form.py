"""The inputs on the Plan page: what is typed and refused stays at its field, many models are looked for by name."""

from dataclasses import replace

from app.plans.inputs import form
from tests.support.app.page import field, press, said
from tests.support.app.values import profile, request
from torchsplit_core.values import Colocation, FleetEntry


def test_two_faults_stay_as_typed_until_each_is_mended_and_the_draft_goes_on(page, solved, rows):
    opened = rows.edit(page("plan", solved), "Models", "bert", "demand_rps", "many")
    rows.edit(opened, "Fleet", "0", "count", "0")
    rows.edit(opened, "Models", "ocr", "weight", "3")
    bert, gpus, ocr = rows.drawn["Models"]["bert"], rows.drawn["Fleet"]["0"], rows.drawn["Models"]["ocr"]
    assert (bert.values["demand_rps"], bert.instead["demand_rps"]) == ("many", "200")
    assert "is 'many', not a number" in bert.faults["demand_rps"]
    assert (gpus.values["count"], gpus.instead["count"]) == ("0", "1")
    assert "below the least value 1" in gpus.faults["count"]
    assert ocr.before == {"weight": "1"} and "weight of ocr 1 → 3" in said(opened)
    assert opened.button(key="draft-keep").disabled
    rows.edit(opened, "Models", "bert", "demand_rps", "250")
    assert "below the least value 1" in said(opened) and opened.button(key="draft-keep").disabled
    rows.edit(opened, "Fleet", "0", "count", "2")
    assert not rows.drawn["Fleet"]["0"].faults and not opened.button(key="draft-keep").disabled
    assert "A100-80GB 1 → 2 · demand of bert 200 → 250 · weight of ocr 1 → 3" in said(opened)


def test_discard_forgets_what_was_typed(page, solved, rows):
    opened = rows.edit(page("plan", solved), "Models", "bert", "demand_rps", "many")
    assert "model bert: demand, req/s: is" in said(opened)
    press(opened, "Discard")
    bert = rows.drawn["Models"]["bert"]
    assert bert.values["demand_rps"] == "200" and not bert.faults and "not a number" not in said(opened)


def test_a_row_that_goes_takes_what_was_typed_into_it(page, solved, rows):
    opened = rows.edit(page("plan", solved), "Models", "bert", "demand_rps", "many")
    rows.edit(opened, "Models", "bert", "remove", True)
    assert "not a number" not in said(opened) and not opened.button(key="draft-keep").disabled
    rows.edit(opened, "Models", "bert", "restore", True)
    assert rows.drawn["Models"]["bert"].values["demand_rps"] == "200"


def test_what_a_model_gets_and_what_was_removed_stand_in_their_rows(page, solved, rows):
    solved.put("profile", profile().source, profile())
    opened = page("plan", solved)
    assert rows.drawn["Models"]["bert"].note.endswith("×") and not rows.drawn["Models"]["bert"].below
    more = rows.edit(opened, "Models", "bert", "demand_rps", "2000")
    assert rows.drawn["Models"]["bert"].below
    rows.edit(more, "Models", "bert", "remove", True)
    assert [row.state for row in rows.drawn["Models"].values()] == ["gone", ""]
    # It is put back in its row, and not offered as a new one beside it.
    assert not rows.drawn.get("Add a model")
    rows.edit(more, "Models", "bert", "restore", True)
    assert "bert removed" not in said(opened) and rows.drawn["Models"]["bert"].values["demand_rps"] == "200"


def test_a_model_that_was_profiled_here_is_added_and_marked_as_new(page, solved, rows):
    solved.put("plan_request", "review", replace(request(), models=request().models[1:]))
    solved.put("profile", profile().source, profile())
    opened = page("plan", solved)
    rows.edit(opened, "Add a model", "new 1", "add", {"model": "bert"})
    assert rows.drawn["Models"]["bert"].state == "new" and "bert added" in said(opened)
    rows.edit(opened, "Models", "bert", "remove", True)
    assert "bert" not in rows.drawn["Models"] and "draft, not kept" not in said(opened)


def test_three_that_belong_together_are_shown_by_their_names(page, workspace, rows):
    third = replace(request().models[0], name="my__model")
    three = Colocation(("bert", "ocr", "my__model"))
    asked = replace(request(), models=(*request().models, third), colocations=(three,))
    workspace.put("plan_request", "review", asked)
    opened = page("plan", workspace)
    row = rows.drawn["Together on one GPU"]["0"]
    assert row.name == "bert, ocr and my__model" and "first" not in row.values
    rows.edit(opened, "Together on one GPU", "0", "mode", "soft")
    assert rows.drawn["Together on one GPU"]["0"].before == {"mode": "must share a GPU"}


def test_a_pair_that_makes_no_sense_is_told_at_its_row_and_forgotten_when_emptied(page, solved, rows):
    table = "Together on one GPU"
    opened = rows.edit(page("plan", solved), table, "0", "add", {"first": "bert", "second": "bert"})
    assert "not two or more different models" in rows.drawn[table]["0"].faults["second"]
    assert opened.button(key="draft-keep").disabled
    rows.edit(opened, table, "0", "add", {"first": "bert", "second": ""})
    assert not rows.drawn[table]["0"].faults and "draft, not kept" not in said(opened)
    rows.edit(opened, table, "0", "add", {"first": "bert", "second": "ocr"})
    rows.edit(opened, table, "0", "second", "bert")
    pair = rows.drawn[table]["0"]
    assert (pair.values["second"], pair.instead["second"]) == ("bert", "ocr") and pair.faults["second"]
    rows.edit(opened, "Models", "ocr", "remove", True)
    rows.edit(opened, "Models", "ocr", "restore", True)
    assert list(rows.drawn[table]) == ["0"] and "draft, not kept" not in said(opened)


def test_of_many_models_those_are_shown_whose_name_is_looked_for(page, workspace, rows):
    first = request().models[0]
    many = tuple(replace(first, name=f"model {place}") for place in range(form.MOST_ROWS + 40))
    workspace.put("plan_request", "review", replace(request(), models=many))
    opened = page("plan", workspace)
    assert len(rows.drawn["Models"]) == form.MOST_ROWS and "The first 64 of 104 models" in said(opened)
    find = field(opened, "text_input", "Find a model")
    find.set_value("MODEL 103").run()
    assert list(rows.drawn["Models"]) == ["model 103"]
    find.set_value("nothing").run()
    assert not rows.drawn["Models"] and "No model has a name like that." in said(opened)


def test_a_type_without_mig_has_none_to_turn_off(page, workspace, rows):
    gpus = (*request().gpus, FleetEntry("L4-24GB"), FleetEntry("A100-80GB", mig=False))
    workspace.put("plan_request", "review", replace(request(), gpus=gpus))
    opened = page("plan", workspace)
    shown = [(row.values["mig"], row.locked) for row in list(rows.drawn["Fleet"].values())[:3]]
    assert shown == [(True, ()), (False, ("mig", "layouts", "either")), (False, ())]
    rows.edit(opened, "Fleet", "2", "mig", True)
    assert rows.drawn["Fleet"]["2"].before == {"mig": "off"}
