"""Plans as workers and places: what is served where, and what is said where it cannot be."""

from dataclasses import replace

import pytest

from tests.support.deployment.engines import with_engines
from tests.support.serving.llm_plans import POINT, decoder_in, llm_plan
from tests.support.serving.plans import Placed, cpu_plan
from torchsplit_core import extras, workflow
from torchsplit_core.hardware.discovery import HostGpu, HostReport, MigInstance
from torchsplit_core.serving.device_binding import bind_slices
from torchsplit_core.serving.frontend.server import prepare_serving
from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings
from torchsplit_core.serving.plan import plan_serving
from torchsplit_core.serving.settings import ServeSettings
from torchsplit_core.values import InputFault

BERT, OCR = "sample:bert", "sample:ocr"
A100 = "A100-80GB"
GPU = HostGpu(0, "NVIDIA A100-SXM4-80GB", "GPU-1", 79.0, A100, False)
MIG = replace(
    GPU,
    mig_enabled=True,
    instances=tuple(MigInstance("MIG 3g.40gb", f"MIG-{n}", 39.0, "3g.40gb", 42, n) for n in (1, 2)),
)


def host(*gpus: HostGpu) -> HostReport:
    return HostReport("a processor", 4, 16.0, gpus, f"{len(gpus)} GPUs.")


def test_processes_are_workers_and_starts_are_cores():
    plan, request = cpu_plan(
        [Placed("bert", "2c", 1, processes=2), Placed("ocr", "1c", 0, batch_size=8)],
        {"bert": BERT, "ocr": OCR}, cores=4, max_wait_ms={"bert": 3.0},
    )  # fmt: skip
    places = bind_slices(plan, report=host(), cores=(4, 5, 6, 7))
    assert {place.id: place.cores for place in places} == {"host0/2c@1": (5, 6), "host0/1c@0": (4,)}
    roster = plan_serving(plan, request, places)
    assert [(worker.id, worker.max_batch) for worker in roster.workers] == [
        ("host0/1c@0#0", 8), ("host0/2c@1#0", 4), ("host0/2c@1#1", 4),
    ]  # fmt: skip
    assert {model.name: model.max_wait_ms for model in roster.models} == {"bert": 3.0, "ocr": 0.0}
    assert roster.shared_slices == () and roster.warnings == ()


def test_tenants_that_need_more_than_their_cores_part_of_the_memory_are_named():
    plan, request = cpu_plan(
        [Placed("bert", "1c"), Placed("ocr", "2c", 1)], {"bert": BERT, "ocr": OCR}, cores=4
    )
    report = replace(host(), memory_gib=0.3)
    places = bind_slices(plan, report=report, cores=(0, 1, 2, 3))
    assert {place.profile: place.device.memory_gib for place in places} == {"1c": 0.075, "2c": 0.15}
    (warning,) = plan_serving(plan, request, places).warnings
    assert "host0/1c@0" in warning and "need 0.1 GiB" in warning and "0.075 GiB" in warning


def test_tenants_of_a_slice_take_turns():
    plan, request = cpu_plan(
        [Placed("bert", share=0.25), Placed("ocr", share=0.75)], {"bert": BERT, "ocr": OCR, "idle": BERT}
    )
    roster = plan_serving(plan, request, bind_slices(plan, report=host(), cores=(0, 1)))
    assert roster.shared_slices == ("host0/1c@0",)
    assert sorted(one.id for one in roster.workers) == ["host0/1c@0/bert.whole#0", "host0/1c@0/ocr.whole#0"]
    assert "idle has no instance" in roster.warnings[0]


@pytest.mark.parametrize("source", [None, "library:bert", "import:bert", ""])
def test_a_model_without_a_source_is_named(source):
    plan, request = cpu_plan([Placed("bert")], {"bert": source})
    with pytest.raises(InputFault, match="models: bert: source"):
        plan_serving(plan, request, bind_slices(plan, report=host(), cores=(0, 1)))


def test_a_cut_needs_its_nodes():
    placed = [Placed("bert", stage="0"), Placed("bert", start=1, stage="1")]
    plan, request = cpu_plan(placed, {"bert": BERT})
    places = bind_slices(plan, report=host(), cores=(0, 1))
    with pytest.raises(InputFault, match="stage 0: nodes"):
        plan_serving(plan, request, places)
    plan, request = cpu_plan(placed, {"bert": BERT}, nodes={"bert": {"0": ("a",), "1": ("b", "c")}})
    roster = plan_serving(plan, request, places)
    assert roster.models[0].nodes == (("a",), ("b", "c"))
    assert [worker.position for worker in roster.workers] == [0, 1]


def test_another_requests_plan_is_refused():
    plan, request = cpu_plan([Placed("bert")], {"bert": BERT})
    other = replace(request, models=(replace(request.models[0], name="other"),))
    with pytest.raises(InputFault, match="the request that this plan answers"):
        plan_serving(plan, other, bind_slices(plan, report=host(), cores=(0, 1)))


def test_what_is_missing_is_said_and_what_can_stand_in():
    plan, _ = cpu_plan([Placed("bert", "3g.40gb"), Placed("bert", "3g.40gb", 4)], {"bert": BERT}, type_=A100)
    with pytest.raises(InputFault) as caught:
        bind_slices(plan, report=host())
    assert "2 × host0 A100-80GB: 3g.40gb" in str(caught.value) and "--stand-in cpu" in str(caught.value)
    with pytest.raises(InputFault, match="--stand-in sm"):
        bind_slices(plan, report=host(GPU))
    places = bind_slices(plan, "cpu", report=host(), cores=(0, 1))
    assert [(place.profile, place.cores) for place in places] == [("3g.40gb", (0,)), ("3g.40gb", (1,))]
    with pytest.raises(InputFault, match="has 2"):
        plan, _ = cpu_plan([Placed("bert", "2c", 2)], {"bert": BERT}, cores=4)
        bind_slices(plan, report=host(), cores=(0, 1))


def test_mig_instances_are_taken_once_each():
    plan, _ = cpu_plan([Placed("bert", "3g.40gb"), Placed("bert", "3g.40gb", 4)], {"bert": BERT}, type_=A100)
    assert [place.device.uuid for place in bind_slices(plan, report=host(MIG))] == ["MIG-1", "MIG-2"]
    one = replace(MIG, instances=MIG.instances[:1])
    with pytest.raises(InputFault) as caught:
        bind_slices(plan, report=host(one))
    assert "lacks: host0 A100-80GB: 3g.40gb." in str(caught.value)


def test_slices_emulated_by_sms():
    plan, _ = cpu_plan([Placed("bert", "3g.40gb")], {"bert": BERT}, type_=A100)
    (place,) = bind_slices(plan, "sm", report=host(GPU))
    assert (place.device.kind, place.device.sm_count, place.device.uuid) == ("sm", 42, "GPU-1")


def test_several_hosts_are_not_one():
    plan, _ = cpu_plan([Placed("bert")], {"bert": BERT})
    gpus = tuple(replace(plan.gpus[0], id=f"{name}/cpu") for name in ("a", "b"))
    with pytest.raises(InputFault, match="is of 2 hosts"):
        bind_slices(replace(plan, gpus=gpus), report=host(), cores=(0, 1))


def test_engines_of_llms_are_refused_with_what_starts_them():
    case = with_engines()
    with pytest.raises(InputFault, match=r"LLMs on GPUs \(chat on H100-SXM5-80GB\).*torchsplit deploy"):
        plan_serving(case.plan, case.request, ())


def test_engines_on_cores_are_served_with_the_settings_of_the_plan(tmp_path):
    source = decoder_in(tmp_path)
    plan, request = llm_plan(source)
    roster = plan_serving(plan, request, bind_slices(plan, report=host(), cores=(4, 5)))
    assert roster.models == () and roster.workers == ()
    assert [(engine.server, engine.slice, engine.settings.cores) for engine in roster.engines] == [
        ("host0/1c@0", "host0/1c@0", (4,)), ("host0/1c@1", "host0/1c@1", (5,)),
    ]  # fmt: skip
    settings = roster.engines[0].settings
    assert (settings.source, settings.name, settings.threads, settings.dtype) == (
        source,
        "chat",
        1,
        "float32",
    )
    assert (settings.max_num_seqs, settings.max_num_batched_tokens, settings.kv_blocks) == (4, 64, 64)
    assert (settings.block_tokens, settings.max_model_len) == (16, 512)
    # A folder with a config.json is one, too, and a point without an engine has the cache that an engine has by itself.
    bare = replace(request.models[0].llm, points=(replace(POINT, engine=None),))
    model = replace(request.models[0], source=str(tmp_path), llm=bare)
    request = replace(request, models=(model,))
    plan = workflow.plan(request)
    settings = plan_serving(plan, request, bind_slices(plan, report=host(), cores=(4, 5))).engines[0].settings
    assert (settings.source, settings.kv_blocks) == (str(tmp_path), LlmEngineSettings("x", "y").kv_blocks)
    assert settings.max_num_seqs == model.llm.engine.max_num_seqs


@pytest.mark.parametrize(("source", "words"), [
    (None, "is missing"), ("hf:meta-llama/Llama-3.1-8B", "is 'hf:meta-llama/Llama-3.1-8B', which is no folder"),
    ("/nowhere", "is '/nowhere', which is no folder"),
])  # fmt: skip
def test_an_llm_without_a_decoder_here_is_named(source, words):
    plan, request = llm_plan(source)
    with pytest.raises(InputFault, match=words) as fault:
        plan_serving(plan, request, bind_slices(plan, report=host(), cores=(0, 1)))
    assert fault.value.where == "models: chat: source" and "--points FILE" in fault.value.remedy


def test_what_engines_need_is_an_extra_and_their_gpus_are_refused_before_this_host_lacks_them(
    tmp_path, monkeypatch
):
    plan, request = llm_plan(decoder_in(tmp_path))
    monkeypatch.setitem(extras.EXTRA_MODULES, "llm", ("absent_package",))
    with pytest.raises(InputFault, match="absent_package"):
        prepare_serving(plan, request, ServeSettings(stand_in="cpu"))
    case = with_engines()
    with pytest.raises(InputFault, match="LLMs on GPUs"):
        prepare_serving(case.plan, case.request, ServeSettings())
