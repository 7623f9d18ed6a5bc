"""Numbers, edits of a request, dropped files, uploads and the refusal to execute them."""

from dataclasses import replace

import pytest

from app.models import upload
from app.models.page import list_models
from app.plans import summary
from app.plans.model_table import models_table
from app.session import dropped_files
from app.session import trust as session_trust
from app.session.result_kind import SCENARIO
from app.shell.job_panel import REFRESH_S
from app.shell.replan import stored_profiles
from tests.support.app.page import button, press
from tests.support.app.values import SOURCE, cuts, plan, profile, request
from torchsplit_core import jobs
from torchsplit_core.files import write_text
from torchsplit_core.hardware import gpu_type
from torchsplit_core.isolation import available_levels, isolation_level
from torchsplit_core.jobs import runner
from torchsplit_core.jobs.job_kinds import (
    PROFILE,
    TRACE,
    ProfileParameters,
    TraceParameters,
    UploadedFile,
    to_stored,
)
from torchsplit_core.pictures import numbers
from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.objective import has_no_minimum, models_without_minimum
from torchsplit_core.transition import state_of_plan
from torchsplit_core.values import Demand, FleetEntry, InputFault, Objective, ResponsePercentiles
from torchsplit_core.values.serving.measurement import Measurement


@pytest.mark.parametrize(("value", "shown"), [
    (7121, "7 120"), (1.3149, "1.31"), (0, "0"), (None, "n/a"), (0.5, "0.5"), (999.9, "1 000"),
    (1234567, "1 230 000"),
])  # fmt: skip
def test_pictures_show_three_figures_with_thin_spaces(value, shown):
    assert numbers.short(value).replace(numbers.THIN, " ") == shown


def test_a_small_share_is_never_shown_as_zero():
    assert numbers.percent(1e-6).replace(numbers.THIN, " ") == "< 0.01 %"


def test_names_are_never_read_as_markdown():
    assert numbers.escape_markdown("a*b_[c](d)") == r"a\*b\_\[c\]\(d\)"
    assert numbers.escape_markdown("a\u202eb\u2066") == "a\ufffdb\ufffd"


def test_a_limit_of_responses_in_the_way_is_told_and_owes_what_arrives():
    assert summary.describe_demand(Demand("max_response_ms", "bert")) == "bert's response-time limit"
    first, second = request().models
    free = replace(first, min_throughput_rps=None), replace(second, min_throughput_rps=None)
    asked = replace(request(), objective=Objective("min_gpus"), models=free)
    assert models_without_minimum(asked) == ("bert", "ocr")
    assert has_no_minimum(asked) and not has_no_minimum(replace(asked, objective=Objective()))
    owed = replace(asked, models=(replace(free[0], max_response_ms=200.0), free[1]))
    assert models_without_minimum(owed) == ("ocr",) and not has_no_minimum(owed)


def test_the_table_of_models_has_response_times_where_the_plan_has():
    first, second = plan().models
    assert "response p95" not in models_table(plan(), request(), {})
    waiting = replace(first, response_ms=ResponsePercentiles(20.0, 41.5, 60.0), response_bound_by="rate")
    limited = tuple(replace(model, max_response_ms=50.0) for model in request().models[:1])
    asked = replace(request(), models=(*limited, *request().models[1:]))
    shown = models_table(replace(plan(), models=(waiting, second)), asked, {})
    for cell in ("response p95, ms", ">41.5<", ">50 of 95 %<", "waiting", ">n/a<"):
        assert cell in shown


def test_a_new_gpu_type_brings_its_points_from_the_profiles():
    asked = replace(request(), gpus=(FleetEntry("H100-SXM5-80GB"),))
    grown = edit.with_points(asked, {"bert": profile()}, [])
    types = {point.gpu_type for point in grown.models[0].variants[0].stages[0].points}
    assert types == {"A100-80GB", "H100-SXM5-80GB"}
    assert grown.models[1] == asked.models[1]


def test_offered_cuts_replace_those_offered_before():
    once = edit.with_cuts(request(), profile(), cuts())
    twice = edit.with_cuts(once, profile(), cuts())
    assert [variant.name for variant in twice.models[0].variants] == ["whole", "cut1"]


def test_another_model_of_the_same_short_name_gets_neither_its_cuts_nor_its_points():
    measured = replace(request().models[0], source="library:bert")
    asked = replace(request(), models=(measured, *request().models[1:]))
    offered = edit.with_cuts(asked, profile(), cuts())
    assert offered.models[:-1] == asked.models
    assert (offered.models[-1].name, offered.models[-1].source) == ("bert-2", profile().source)
    again = edit.with_cuts(offered, profile(), cuts())
    assert again == offered
    other = replace(profile(), source="library:bert")
    assert edit.profiles_of(offered, [profile(), other]) == {"bert": other, "bert-2": profile()}
    wider = replace(asked, gpus=(FleetEntry("H100-SXM5-80GB"),))
    assert edit.with_points(wider, edit.profiles_of(wider, [profile()]), []) == wider


def test_a_negative_demand_is_refused_before_it_is_stored():
    asked = request()
    with pytest.raises(InputFault, match="demand_rps"):
        edit.validated_request(replace(asked, models=(replace(asked.models[0], demand_rps=-1.0),)))


def test_memory_is_told_in_binary_units_and_what_is_sent_in_decimal_ones():
    assert [numbers.memory_size(count) for count in (None, 10, 2048, 3 * 2**20, 80 * 2**30)] == [
        "n/a", "10\u202fB", "2\u202fKiB", "3\u202fMiB", "80\u202fGiB",
    ]  # fmt: skip
    assert [numbers.size(count) for count in (2000, 3e6, 80e9)] == ["2\u202fkB", "3\u202fMB", "80\u202fGB"]
    assert (numbers.size(2**30), numbers.memory_size(1e9)) == ("1.07\u202fGB", "954\u202fMiB")


def test_unused_multiprocessors_count_free_slices_and_what_no_profile_reaches():
    outcome = plan()
    gpu = outcome.gpus[0]
    half = replace(outcome, gpus=(replace(gpu, slices=(gpu.slices[0], replace(gpu.slices[1], tenants=()))),))
    full, some = (summary.metrics(found, None)[3] for found in (outcome, half))
    kind = gpu_type("A100-80GB")
    free = kind.profile("3g.40gb").sm_count or 0
    lost = (kind.sm_mig_on or 0) - free - (kind.profile("4g.40gb").sm_count or 0)
    assert (full.value, some.value) == (f"{lost}{numbers.THIN}SMs", f"{free + lost}{numbers.THIN}SMs")
    assert (full.note, some.note, lost) == ("nothing idle", f"{free} in free slices", 0)


def test_every_kind_of_contract_file_can_be_dropped(workspace):
    dropped_files.store_dropped(workspace, "anything.json", write_text(profile()).encode())
    dropped_files.store_dropped(workspace, "winter.json", write_text(request()).encode())
    dropped_files.store_dropped(workspace, "other.json", write_text(plan()).encode())
    assert workspace.get("profile", SOURCE) == profile()
    assert SCENARIO.current(workspace) == "winter"
    assert workspace.get("plan", "winter") == plan()
    SCENARIO.choose(workspace, "another")
    found = Measurement(plan().request_sha256, 2.0, 0.5, "here", ())
    dropped_files.store_dropped(workspace, "seen.json", write_text(found).encode())
    assert workspace.get("measurement", "winter") == found and SCENARIO.current(workspace) == "winter"
    alone = replace(found, request_sha256="0" * 64)
    dropped_files.store_dropped(workspace, "alone.json", write_text(alone).encode())
    assert workspace.get("measurement", "alone") == alone and SCENARIO.current(workspace) == "winter"


def test_a_state_of_a_host_can_be_dropped_and_one_that_no_host_can_be_in_is_refused(workspace):
    state = state_of_plan(plan())
    dropped_files.store_dropped(workspace, "node3.json", write_text(state).encode())
    assert workspace.get("host_state", "node3") == state
    twice = replace(state, gpus=state.gpus * 2)
    with pytest.raises(InputFault, match="given twice"):
        dropped_files.store_dropped(workspace, "twice.json", write_text(twice).encode())
    assert len(workspace.artifacts("host_state")) == 1


def test_a_second_profile_of_a_model_stands_beside_the_first(workspace):
    first = profile()
    second = replace(first, environment={"device": "another"})
    dropped_files.store_dropped(workspace, "a.json", write_text(first).encode())
    dropped_files.store_dropped(workspace, "a.json", write_text(first).encode())
    dropped_files.store_dropped(workspace, "winter.json", write_text(second).encode())
    assert workspace.get("profile", SOURCE) == first
    assert workspace.get("profile", f"{SOURCE} (winter)") == second
    assert len(workspace.artifacts("profile")) == 2
    assert [entry.profile for entry in list_models(workspace)] == [first]
    assert stored_profiles(workspace)[0] == first


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe\x00", b"not json", b"{}", b'{"format": "torchsplit.plan", "version": 1, "x": 1}']
)
def test_a_file_that_is_no_contract_is_one_message_and_stores_nothing(data, workspace):
    with pytest.raises(InputFault):
        dropped_files.store_dropped(workspace, "noise.json", data)
    assert not workspace.artifacts()


def test_a_server_that_refuses_says_so_and_still_offers_samples(page, workspace, monkeypatch):
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", "refused")
    opened = page("models", workspace)
    assert any("executes nothing that was uploaded" in element.value for element in opened.warning)
    assert "Trace the sample" in [button.label for button in opened.button]


def test_the_box_of_trust_says_what_holds_the_code_on_this_machine(monkeypatch):
    for level in available_levels():
        monkeypatch.setenv("TORCHSPLIT_ISOLATION", level)
        assert isolation_level().text in session_trust.describe_trust()
    monkeypatch.setenv("TORCHSPLIT_ISOLATION", "none")
    assert "TORCHSPLIT_ISOLATION: unknown level 'none'" in session_trust.describe_trust()


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), (None, False)],
)
def test_only_a_loopback_address_may_execute_by_default(address, loopback, monkeypatch):
    monkeypatch.delenv("TORCHSPLIT_EXECUTION")
    monkeypatch.setattr(session_trust.st, "get_option", lambda name: address)
    assert session_trust.is_refused() is not loopback


@pytest.mark.parametrize(("file", "data", "entry", "trust", "rule"), [
    ("m.pt2", b"", "", False, "is empty"),
    ("m.py", b"x = 1", "Client", False, "trusted"),
    ("m.py", b"x = 1", "no name!", True, "no name in Python"),
])  # fmt: skip
def test_an_upload_that_cannot_work_is_refused_before_it_is_stored(file, data, entry, trust, rule, workspace):
    with pytest.raises(InputFault, match=rule):
        upload.start(workspace, file, data, entry, trust=trust)
    assert not workspace.artifacts()


def test_trust_counts_for_nothing_where_execution_is_refused(workspace, monkeypatch):
    found = []
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", "refused")
    monkeypatch.setattr(jobs, "start", lambda *args: found.append(args[3]) or "job")
    upload.start(workspace, "m.pt2", b"PK\x03\x04", trust=True)
    assert found == [TraceParameters("m.pt2", UploadedFile("m.pt2"))]


@pytest.mark.parametrize("server", ["allowed", "refused"])
def test_work_on_an_upload_is_resumed_only_where_allowed(page, workspace, server, monkeypatch, started):
    parameters = ProfileParameters(("m.pt2",), uploads={"m.pt2": UploadedFile("m.pt2", "0" * 64)})
    record = workspace.add_job("Profile m.pt2", PROFILE, to_stored(PROFILE, parameters))
    runner._write(workspace.store, record.id, {"state": "failed", "fault": "killed"})
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", server)
    opened = page("models", workspace)
    resume = button(opened, "Resume")
    assert resume.disabled is (server == "refused")
    assert ("executes none" in resume.help) is (server == "refused")
    if server == "allowed":
        resume.click().run()
        assert started == [(PROFILE, parameters)]


def test_failed_work_is_one_message_until_dismissed(page, workspace):
    assert REFRESH_S < 2
    record = workspace.add_job("Trace it", TRACE, {})
    runner._write(workspace.store, record.id, {"state": "failed", "fault": "It cannot be exported."})
    opened = page("graph", workspace)
    assert [element.value.replace("\\", "") for element in opened.error] == [
        "Trace it failed. It cannot be exported."
    ]
    press(opened, "Dismiss")
    assert not opened.error
    assert not page("graph", workspace).error
