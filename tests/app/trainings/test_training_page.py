"""The pages of trainings as a user drives them."""

import json
import re
from dataclasses import fields, replace

import pytest
from streamlit.testing.v1 import AppTest

from app.session.trainings import StoredTraining
from app.trainings.new_form import CONFIG, SIZES, TRACED, example, nodes_of, sizes_of
from app.trainings.strategy_tables import (
    describe_bottleneck,
    describe_choice,
    label,
    ranking_rows,
    share_rows,
    stage_rows,
    where_trained,
)
from tests.strategy.test_graph_model import chain
from tests.support.app.page import field, press, said
from tests.support.training.measured import finished_run
from torchsplit_core.jobs.job_kinds import (
    STRATEGY,
    STRATEGY_STUDY,
    TRAIN,
    RequestParameters,
    RequestVersionParameters,
)
from torchsplit_core.jobs.strategy import strategy_job, study_job
from torchsplit_core.model_source import parse_source
from torchsplit_core.strategy.presets import preset_names
from torchsplit_core.strategy.sensitivity import sensitivity
from torchsplit_core.training.monitor.measured_steps import save_run_step
from torchsplit_core.values import InputFault, ignore_progress
from torchsplit_core.values.strategy.outcome import StrategyOutcome, StrategyStage
from torchsplit_core.values.strategy.request import (
    SourceSizes,
    StrategyFix,
    StrategyNodes,
    StrategyRequest,
    TransformerSizes,
)
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy
from torchsplit_core.values.training import ParallelConfig, TrainingJob
from torchsplit_core.workflow import strategy
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace, default_root

SMALL = StrategyRequest(
    TransformerSizes(4, 256, 4, 4, 1024, 1000, 128), (StrategyNodes(2, 2, "A100-40GB"),), TrainingJob(16),
    top_k=3,
)  # fmt: skip


def found(workspace: Workspace, name: str, request: StrategyRequest = SMALL) -> StrategyOutcome:
    workspace.put("strategy_request", name, request)
    strategy_job(workspace, RequestParameters(name), ignore_progress)
    return workspace.get("strategy", name)


def test_an_empty_workspace_begins_with_an_example(page, workspace, started):
    opened = page("trainings", workspace)
    assert "Begin with an example" in said(opened) and "How wrong it was" in said(opened)
    assert "python -m" not in said(opened)
    (chart,) = opened.get("plotly_chart")
    axes = json.loads(chart.proto.spec)["layout"]
    # Both axes have the line, and so the same labels at powers of ten.
    assert axes["yaxis"]["nticks"] >= axes["xaxis"]["nticks"]
    press(opened, "Llama 3 8B on 8 H100")
    assert started == [(STRATEGY, RequestParameters("Llama 3 8B on 8 H100"))]
    assert workspace.get("strategy_request", "Llama 3 8B on 8 H100") == example("Llama 3 8B on 8 H100")


def test_a_strategy_is_shown_with_its_figures_and_its_file(page, workspace):
    outcome = found(workspace, "small")
    opened = page("training", workspace)
    assert not opened.exception
    words = said(opened)
    assert "Bottleneck" in words and "Where the time goes" in words and "untested on hardware" in words
    assert outcome.message in words
    # An estimate has three digits at most.
    figures = [row[name] for row in ranking_rows(outcome) for name in ("s/step", "tokens/s", "GiB a device")]
    assert all(len(re.sub(r"\D", "", text).strip("0")) <= 3 for text in figures), figures
    assert {"Request (JSON)", "Strategies (JSON)", "Plain PyTorch file"} <= {
        element.label for element in opened.get("download_button")
    }


def test_a_fleet_of_cores_has_no_words_of_gpus(page, workspace):
    cores = replace(SMALL, fleet=(StrategyNodes(1, 1, "CPU-2c"),), training=TrainingJob(4, "fp32"))
    best = found(workspace, "cores", cores).candidates[0]
    assert best.parts_s.compute > 0.75 * best.seconds_per_step
    words = said(page("training", workspace))
    assert "The cores compute most of the step." in words and "the cores' peak" in words
    assert "The GPUs" not in words and "untested on hardware" not in words


def test_a_pipeline_across_unlike_nodes_is_shown_stage_by_stage(page, workspace):
    model = TransformerSizes(9, 4096, 32, 32, 16384, 32000, 512)
    fleet = (StrategyNodes(1, 2, "T4-16GB"), StrategyNodes(1, 1, "L4-24GB"))
    fix = StrategyFix(offload="none", tensor=1, data=1, context=1)
    outcome = found(
        workspace,
        "across",
        StrategyRequest(model, fleet, TrainingJob(8, "fp16"), fix, may_need=("precision",)),
    )
    best = outcome.candidates[0]
    assert best.across and best.pipeline == 3
    rows = stage_rows(best)
    assert [row["stage"] for row in rows] == [1, 2, 3] and sum(row["layers in all"] for row in rows) == 9
    assert rows[0]["layers"].startswith("1") and rows[-1]["layers"].endswith("9")
    assert {row["nodes"] for row in rows} == {"T4-16GB", "L4-24GB"} and {row["devices"] for row in rows} == {
        1
    }
    opened = page("training", workspace)
    assert not opened.exception
    words = said(opened)
    assert "A pipeline across unlike nodes" in words and "Shares of unlike nodes" not in words
    assert "8 micro-batches pass every stage" in words
    assert "No file is written for this one: stages 2: stages of unlike groups" in words
    assert label(0, best) == "1 · across 2 entries p3" and "→" in describe_choice(best)


def test_groups_of_an_earlier_version_are_shown_entry_by_entry():
    best = strategy(SMALL).candidates[0]
    stage = {element.name: getattr(best, element.name, 1) for element in fields(StrategyStage)}
    first = StrategyStage(
        **stage
        | {
            "memory_gib": 1.0,
            "seconds": 1.0,
            "type": "L4-24GB",
            "layers_per_stage": (4,),
            "group": 1,
            "sequences": 16,
        }
    )
    second = replace(first, type="T4-16GB", group=2, start_layer=5, end_layer=6)
    beside = replace(best, stages=(first, second))
    rows = share_rows(beside)
    assert [row["group"] for row in rows] == [1, 2] and {row["sequences"] for row in rows} == {16}
    assert rows[1]["layers"] == "5–6" and describe_choice(beside).endswith("L4-24GB | T4-16GB")
    assert label(0, beside) == "1 · 2 groups"
    trained, words = where_trained(SMALL, beside)
    assert not trained and "divides the work of its 2 kinds of nodes in different ways" in words


def test_a_strategy_says_where_it_runs_and_is_offered_here_where_its_devices_fit(
    page, workspace, monkeypatch
):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})
    best = found(workspace, "small", SMALL).candidates[0]
    assert best.devices == 4
    opened = page("training", workspace)
    assert "torchsplit train runs it, on 4 processes." in said(opened)
    assert "Train by it on this machine" in {element.label for element in opened.button}
    wide = replace(SMALL, fleet=(StrategyNodes(4, 2, "A100-80GB"),))
    found(workspace, "small", wide)
    opened = page("training", workspace)
    assert "it takes 8 devices, and this machine takes 4 processes" in said(opened)
    assert "Train by it on this machine" not in {element.label for element in opened.button}


def test_the_form_of_a_run_begins_with_the_strategy_that_was_to_be_trained_by(page, workspace, monkeypatch):
    went = []
    monkeypatch.setattr("app.shell.navigation.go", lambda title, name=None: went.append((title, name)))
    monkeypatch.setattr("app.trainings.page.where_trained", lambda request, candidate: (True, "here"))
    second = found(workspace, "small", SMALL).candidates[1]
    opened = page("training", workspace)
    field(opened, "selectbox", "Strategy").select_index(1).run()
    press(opened, "Train by it on this machine")
    assert went == [("Runs", None)]
    form = page("runs", workspace)
    for key in ("run-kind", "run-strategy", "run-candidate small", "run-processes", "run-precision"):
        form.session_state[key] = opened.session_state[key]
    form.run()
    assert form.radio(key="run-kind").value == "A file of yours"
    chosen = [field(form, "selectbox", label).value for label in ("Strategy", "Candidate", "Precision")]
    assert chosen == ["small", 2, SMALL.training.precision]
    assert field(form, "number_input", "Processes").value == second.devices


def test_a_strategy_of_a_sample_is_trained_by_at_one_press(page, workspace, started, monkeypatch):
    went = []
    monkeypatch.setattr("app.shell.navigation.go", lambda title, name=None: went.append((title, name)))
    outcome = found(workspace, "small", SMALL)
    best, sample = outcome.candidates[0], replace(SMALL, model=SourceSizes("sample:llama"))
    workspace.put("strategy_request", "small", sample)
    named_results.store_outcome(workspace, "small", sample, outcome)
    opened = page("training", workspace)
    press(opened, "Train by it on this machine")
    ((kind, parameters),) = started
    assert kind == TRAIN and (parameters.source, parameters.file) == ("sample:llama", None)
    assert parameters.strategy.choices == best.choices
    assert parameters.strategy.predicted.low_s == best.low_s
    assert went == [("Run", parameters.request)]


def test_what_does_not_run_is_asked_for_by_name(page, workspace, started):
    found(workspace, "small", SMALL)
    opened = page("training", workspace)
    opened.multiselect[0].set_value(["expert", "offload"]).run()
    next(element for element in opened.button if element.key == "training-find").click().run()
    assert workspace.get("strategy_request", "small").may_need == ("expert", "offload")


def test_an_edited_request_is_searched_again_and_the_old_answer_is_not_shown(page, workspace, started):
    found(workspace, "small")
    opened = page("training", workspace)
    field(opened, "text_input", "Tensor").set_value("2").run()
    press(opened, "Find a strategy")
    assert started[-1] == (STRATEGY, RequestParameters("small"))
    assert workspace.get("strategy_request", "small").fix.tensor == 2
    assert "Where the time goes" not in said(opened)


@pytest.mark.parametrize("text", ["0", "two", "-1", "1.5"])
def test_a_choice_that_is_no_number_is_one_red_line(text, page, workspace, started):
    found(workspace, "small")
    opened = page("training", workspace)
    field(opened, "text_input", "Tensor").set_value(text).run()
    press(opened, "Find a strategy")
    assert len(opened.error) == 1 and not started


def test_what_stands_around_an_answer_is_asked_for_as_a_job(page, workspace, started):
    found(workspace, "small")
    press(page("training", workspace), "Look around")
    digest = named_results.sha256_of(workspace, "strategy_request", "small")
    assert started == [(STRATEGY_STUDY, RequestVersionParameters("small", digest))]
    told = study_job(workspace, RequestVersionParameters("small", digest), ignore_progress)
    json.dumps(told)
    assert [one["devices"] for one in told["scaled"]] == [1, 2, 4]
    with pytest.raises(InputFault):
        study_job(workspace, RequestVersionParameters("small", "0" * 64), ignore_progress)


def test_a_strategy_of_a_sample_has_the_files_by_which_clusters_start_it(page, workspace):
    labels = {"Slurm (zip)", "JobSet (zip)"}
    request = replace(SMALL, fix=StrategyFix(tensor=1, pipeline=1, context=1, offload="none"))
    outcome = found(workspace, "small", request)
    request = replace(request, model=SourceSizes("sample:bert"))
    kept = StoredTraining("My run", "0" * 64, request, outcome, True)

    def shown(kept):
        def script(kept):
            from app.trainings import cluster_files

            cluster_files.render(kept, kept.outcome, 0)

        return AppTest.from_function(script, kwargs={"kept": kept}).run()

    offered = shown(kept)
    assert labels == {element.label for element in offered.get("download_button")}
    assert "2 nodes of 2 GPUs" in said(offered)
    refused = shown(replace(kept, request=replace(request, fleet=(*request.fleet, *request.fleet))))
    assert not refused.get("download_button") and "the nodes of a run are equal" in said(refused)
    opened = page("training", workspace)
    assert not labels & {element.label for element in opened.get("download_button")}


def test_each_choice_changed_alone_is_no_faster_than_the_best():
    best = strategy(SMALL).candidates[0]
    around = sensitivity(SMALL, best, strategy)
    assert {one.choice for one in around.changed} >= {"data", "shard", "recompute", "micro_batch"}
    assert all(one.seconds is None or one.seconds >= best.seconds_per_step for one in around.changed)
    assert all(one.seconds is not None or one.why_not for one in around.changed)
    memory = [one.memory_gib.total for one in around.frontier]
    seconds = [one.seconds_per_step for one in around.frontier]
    assert around.frontier[0] == best and memory == sorted(memory, reverse=True)
    assert seconds == sorted(seconds)


def test_a_traced_model_is_searched_from_the_graph_of_the_workspace(workspace):
    request = replace(SMALL, model=SourceSizes("chain"))
    with pytest.raises(InputFault, match="traced"):
        found(workspace, "traced", request)
    workspace.put("graph", "chain", chain())
    assert found(workspace, "traced", request).candidates


def test_finished_runs_of_an_upload_calibrate_until_the_box_is_unticked(
    page, workspace, started, tmp_path, monkeypatch
):
    """The run trained another copy of the file: its content says that it is the same model."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    (tmp_path / "copy.py").write_bytes(b"class Net: ...")
    workspace.put_bytes("upload", "net.py", b"class Net: ...")
    workspace.put("graph", "net.py:Net", chain())
    trained, job = parse_source(f"{tmp_path / 'copy.py'}:Net", trust=True), TrainingJob(16, "fp32")
    run = finished_run(tmp_path / "net-1")
    save_run_step(default_root(), trained, RunStrategy(ParallelConfig(), job), RunOptions(), run)
    request = StrategyRequest(SourceSizes("net.py:Net"), (StrategyNodes(1, 1, "CPU-1c"),), job, top_k=1)
    (calibration,) = found(workspace, "traced", request).calibrated_by
    assert (calibration.run, calibration.seconds) == ("net-1", 0.02)
    opened = page("training", workspace)
    assert "'net-1', finished" in said(opened)
    field(opened, "checkbox", "Calibrate by finished runs").uncheck().run()
    press(opened, "Find a strategy")
    ignoring = workspace.get("strategy_request", "traced")
    assert not ignoring.model.calibrate_by_runs
    assert found(workspace, "traced", ignoring).calibrated_by == ()


def test_models_are_read_from_what_is_told():
    config = json.dumps({
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100,
    })  # fmt: skip
    name, sizes = sizes_of({"kind": CONFIG, "file": "config.json", "text": config, "sequence": 32})
    assert name == "config.json" and sizes == TransformerSizes(
        2, 64, 4, 2, 128, 100, 32, gated=True, tied_embeddings=False
    )
    assert sizes_of({"kind": TRACED, "source": "sample:bert"})[1] == SourceSizes("sample:bert")
    for name in preset_names():
        sizes_of({"kind": "published", "name": name, "sequence": 1024})


@pytest.mark.parametrize("told", [
    {"kind": CONFIG, "file": None, "text": None, "sequence": 8},
    {"kind": CONFIG, "file": "c", "text": "[]", "sequence": 8},
    {"kind": CONFIG, "file": "c", "text": "{", "sequence": 8},
    {"kind": CONFIG, "file": "c", "text": '{"hidden_size": 4}', "sequence": 8},
    {"kind": CONFIG, "file": "c", "text": '{"hidden_size": true, "num_attention_heads": 1}', "sequence": 8},
    {"kind": SIZES, "layers": 2, "hidden": 10, "heads": 3, "kv_heads": 3, "ffn": 4, "vocab": 5, "sequence": 8,
     "experts": 1, "experts_per_token": 1, "gated": False, "tied_embeddings": True},
])  # fmt: skip
def test_a_model_that_makes_no_sense_is_refused(told):
    with pytest.raises(InputFault):
        sizes_of(told)


def test_a_fleet_needs_filled_rows():
    with pytest.raises(InputFault):
        nodes_of([])
    with pytest.raises(InputFault):
        nodes_of([{"nodes": 1, "GPUs a node": None, "type": "A100-80GB"}])


def test_a_candidate_has_a_short_name_and_a_bottleneck():
    best = strategy(SMALL).candidates[0]
    assert label(0, best).startswith("1 · ")
    parts = replace(best.parts_s, compute=0.0, pipeline_bubble=best.seconds_per_step)
    waits = replace(best, parts_s=parts)
    assert describe_bottleneck(waits, gpus=True).startswith("Pipeline bubble is 100")
    assert describe_bottleneck(waits, gpus=False) == describe_bottleneck(waits, gpus=True)
