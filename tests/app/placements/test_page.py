"""The Place page: examples, the answer in words and pictures, what is tried, files, launch arguments, bad input."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from app.charts.pipeline import JOINED, groups, pipeline_html, slowest, topology_html, type_colours
from app.placements import form, new_form, outcome_tables
from app.session import dropped_files
from app.session.result_kind import PLACEMENT
from tests.support.app.page import field, metrics, press, said
from tests.support.app.placement_page import example, number, place_it
from torchsplit_core import workflow
from torchsplit_core.deployment.launch_commands import launch_commands
from torchsplit_core.files import read_text, write_text
from torchsplit_core.jobs.job_kinds import PLACE, RequestParameters
from torchsplit_core.placement.request.build import build_request
from torchsplit_core.values import InputFault, PlacedSegment, PlacementGpu
from torchsplit_core.workspace.archive import export_workspace, import_workspace
from torchsplit_core.workspace.store import Workspace

HOSTILE = "<script>alert(1)</script> & \"'\u202e\u200b/gpu0"


@pytest.fixture
def placed(workspace) -> Workspace:
    """A workspace with the tiny case, placed."""
    place_it(workspace, "tiny", example())
    return workspace


def test_an_empty_page_offers_examples_that_are_stored_and_placed(page, workspace, started):
    opened = page("place", workspace)
    assert "Here you will see which layers" in said(opened) and not opened.metric
    press(opened, "30 GPUs of three types")
    assert started == [(PLACE, RequestParameters("30 GPUs of three types"))]
    assert workspace.get("placement_request", "30 GPUs of three types") == example("placements/thirty_gpus")


def test_a_known_decoder_is_placed_on_nodes(page, workspace, started):
    press(page("place", workspace), "Place this model")
    (name,) = PLACEMENT.names(workspace)
    request = workspace.get("placement_request", name)
    assert name == "llama-3.1-70b on 16 GPUs" and request.model.layers == 80 and len(started) == 1
    assert {gpu.type for gpu in request.gpus} == {"H100-SXM5-80GB", "A100-80GB"}


def test_the_answer_is_one_number_with_its_proof_and_what_cannot_be_asked_one_message(page, placed):
    opened = page("place", placed)
    shown = metrics(opened)
    assert shown["Throughput"] == "302 tokens/s" and shown["GPUs used"] == "2 of 4"
    assert shown["Bounded by"] == "Segment 1"
    assert "proven optimal" in said(opened) and "speeds estimated" in said(opened)
    table = next(element.value for element in opened.dataframe if "layers" in element.value)
    assert list(table["tokens/s"]) == [pytest.approx(301.784)] and list(table["GPUs"]) == ["0, 1"]
    number(opened, "Batch, sequences").set_value(1).run()
    assert len([one for one in opened.warning if "batch" in one.value.lower()]) == 1 and not opened.error


def test_what_is_changed_is_tried_at_once_and_kept_only_when_asked(page, placed, started):
    opened = page("place", placed)
    number(opened, "GPUs a segment at most").set_value(4).run()
    assert metrics(opened)["Throughput"] == "345 tokens/s"
    assert "Tried, not kept: GPUs a segment 2 → 4" in said(opened) and "14.5" in said(opened)
    assert placed.get("placement_request", "tiny").max_gpus_per_segment == 2 and not started
    press(opened, "Back")
    assert metrics(opened)["Throughput"] == "302 tokens/s"
    number(opened, "GPUs a segment at most").set_value(4).run()
    press(opened, "Place")
    assert placed.get("placement_request", "tiny").max_gpus_per_segment == 4 and len(started) == 1
    # The old answer stays, and is said to be old.
    assert "before this change" in said(opened) and metrics(opened)["Throughput"] == "302 tokens/s"


def test_a_model_that_fits_nowhere_says_what_is_missing(page, workspace):
    tiny = example()
    place_it(workspace, "huge", replace(tiny, model=replace(tiny.model, layer_weight_gib=500.0)))
    opened = page("place", workspace)
    assert "proven infeasible" in said(opened) and "GiB" in opened.warning[0].value and not opened.metric


def test_files_give_back_what_is_stored(page, placed, files):
    page("place", placed)
    assert read_text(files["tiny.placement_request.json"](), origin="file")[1] == example()
    assert read_text(files["tiny.placement.json"](), origin="file")[1] == placed.get("placement", "tiny")


def test_an_outcome_from_an_archive_is_checked_against_its_request(placed):
    copied = import_workspace(placed.store, export_workspace(placed))
    assert PLACEMENT.load(copied, "tiny").is_current
    copied.put("placement_request", "tiny", replace(example(), communication_efficiency=0.5))
    assert not PLACEMENT.load(copied, "tiny").is_current


def test_dropped_files_stand_beside_each_other(workspace):
    dropped_files.store_dropped(workspace, "mine.json", write_text(example()).encode())
    outcome = workflow.place(example())
    artifact = dropped_files.store_dropped(workspace, "answer.json", write_text(outcome).encode())
    assert artifact.name == "mine" and PLACEMENT.current(workspace) == "mine"
    assert PLACEMENT.load(workspace, "mine").is_current
    broken = replace(example(), bandwidth_gib_per_s=((0.0,),))
    with pytest.raises(InputFault):
        dropped_files.store_dropped(workspace, "broken.json", write_text(broken).encode())


def test_the_fleet_can_be_made_smaller_but_not_larger():
    request = example()
    rows = form.fleet_rows(request)
    assert [(row["type"], row["GPUs"]) for row in rows] == [("A100", 2), ("V100", 2)]
    rows[0]["GPUs"], rows[1]["GiB"] = 1, 16.0
    fewer = form.with_fleet(request, rows)
    assert [(gpu.id, gpu.memory_gib) for gpu in fewer.gpus] == [(0, 80.0), (2, 16.0), (3, 16.0)]
    assert fewer.bandwidth_gib_per_s[1] == (200.0, 0.0, 300.0)
    assert outcome_tables.describe_changes(request, fewer) == ("1 GPU fewer", "memory of GPUs")
    rows[0]["GPUs"] = 9
    with pytest.raises(InputFault, match="known links"):
        form.with_fleet(request, rows)


@pytest.mark.parametrize("rows", [[], [{"nodes": 1, "GPUs a node": None, "type": "T4"}]])
def test_a_fleet_that_is_not_filled_is_refused(rows):
    with pytest.raises(InputFault, match="Fleet"):
        new_form.fleet_text(rows)


def test_a_config_and_a_matrix_of_ones_own():
    options = {"phase": "decode", "sequence_length": 128, "batch_size": 4}
    config = (
        '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,'
        ' "num_attention_heads": 4, "vocab_size": 100, "torch_dtype": "float16"}'
    )
    made = new_form.build_placement(
        new_form.CUSTOM_CONFIG, "1x2xH100-SXM5-80GB", config, "0,1.073741824\n2.147483648,0\n", options
    )
    assert made.model.layers == 3 and made.bandwidth_gib_per_s == ((0.0, 1.0), (2.0, 0.0))
    with pytest.raises(InputFault, match=r"config\.json"):
        new_form.build_placement(new_form.CUSTOM_CONFIG, "1x2xH100-SXM5-80GB", None, None, options)


def test_a_long_pipeline_is_folded_and_every_gpu_in_use_is_drawn():
    request = new_form.structured_fleet()
    outcome = workflow.place(request)
    assert outcome.status == "optimal"
    used = [str(gpu) for part in outcome.segments for gpu in part.gpu_ids]
    assert re.findall(r'data-gpu="([^"]*)"', topology_html(outcome, request)) == used
    flow = ET.fromstring(pipeline_html(outcome, request))
    assert 2 <= len(flow) <= 40 and "124 segments" in "".join(flow.itertext())
    over = "".join(ET.fromstring(topology_html(outcome, request)).itertext())
    assert "64 nodes" in over and "512 unused" in over and len(groups(request)) == 128


def test_the_slowest_part_is_framed_and_equal_neighbours_are_one_card():
    request = example("placements/decode_70b")
    outcome = workflow.place(request)
    segments, links = slowest(outcome)
    assert 0 < len(segments) < len(outcome.segments) and not links
    drawn = [
        element
        for element in ET.fromstring(pipeline_html(outcome, request)).iter("svg")
        if element.get("class") == "segment"
    ]
    framed = [one for one in drawn if 'stroke-width="3"' in ET.tostring(one, "unicode")]
    # Eight alike are one card; its frame is in ink, its ground in the colour of their type.
    assert len(framed) == 1 and segments == tuple(range(8, 16))
    told = "".join(framed[0].itertext())
    assert "9–16: 8 segments" in told and told.endswith("slowest")
    colours = type_colours(request)
    assert len(colours) == 2 and colours["A100-80GB"] in ET.tostring(drawn[1], "unicode") + ET.tostring(
        drawn[0], "unicode"
    )
    literal = example("placements/decode_70b_seed_literal")
    slow = workflow.place(literal)
    assert slowest(slow)[1] and outcome_tables.bottleneck(slow)[0].startswith(("Link", "3 links"))
    assert "batches/s" in pipeline_html(slow, literal) and outcome_tables.unit_of(slow) == ""
    root = ET.fromstring(pipeline_html(outcome, request))
    words_of = ["".join(one.itertext()) for one in root.iter("svg") if one.get("class") == "segment"]
    joined = [text for text in words_of if "segments" in text]
    assert joined and len(words_of) <= len(outcome.segments) - JOINED + 1
    for group in list(root)[1:]:
        assert [one.get("class") for one in group] == ["link", "segment"]
    assert [one.get("class") for one in root[0]] == ["segment"]


def test_a_thousand_gpus_in_use_stand_in_one_screen():
    gpus = tuple(PlacementGpu(f"n{i // 8}/gpu{i % 8}", "H100", 80.0) for i in range(1024))
    parts = tuple(PlacedSegment(i, i, (gpu.id,), 1.0, 1.0) for i, gpu in enumerate(gpus))
    request = replace(example(), gpus=gpus)
    outcome = replace(workflow.place(example()), segments=parts, links=())
    nodes = [one for one in ET.fromstring(topology_html(outcome, request)) if one.get("class") == "node"]
    area = sum((float(one.get("width", "nan")) + 6) * (float(one.get("height", "nan")) + 6) for one in nodes)
    assert len(nodes) == 128 and area < 900 * 700
    cells = [element for node in nodes for element in node.iter("svg") if element.get("data-gpu")]
    assert len(cells) == 1024 and "segment 1024" in (cells[-1].findtext("title") or "")


def test_links_are_told_in_the_unit_of_every_other_page():
    assert outcome_tables.shown_link(12.5e9 / 2**30) == 12.5
    for stored in (12.5e9 / 2**30, 400.0, 1 / 3):
        assert outcome_tables.stored_link(outcome_tables.shown_link(stored), stored) == stored
    assert outcome_tables.stored_link(25.0, 400.0) == 25e9 / 2**30
    request = example("placements/decode_70b")
    outcome = workflow.place(request)
    figures = outcome_tables.links_table(outcome, request)["slowest pair, GB/s"]
    assert figures and all(
        figure in {outcome_tables.shown_link(v) for row in request.bandwidth_gib_per_s for v in row}
        for figure in figures
    )


def test_hostile_names_stay_words():
    tiny = example()
    request = replace(tiny, gpus=(replace(tiny.gpus[0], id=HOSTILE), *tiny.gpus[1:]))
    outcome = workflow.place(request)
    assert outcome.segments[0].gpu_ids[0] == HOSTILE
    for markup in (pipeline_html(outcome, request), topology_html(outcome, request)):
        assert "<script" not in markup and "\u202e" not in markup
        assert {element.tag for element in ET.fromstring(markup).iter()} <= {
            "div", "svg", "title", "rect", "path", "text",
        }  # fmt: skip
    assert all(one.unsupported_reason and not one.text for one in launch_commands(request, outcome))


def test_launch_arguments_name_every_gpu_or_say_why_not():
    tiny, large = example(), example("placements/decode_70b")
    vllm, torchrun = launch_commands(tiny, workflow.place(tiny), "a model")
    assert "VLLM_PP_LAYER_PARTITION=4" in vllm.text and vllm.text.count("vllm serve 'a model'") == 2
    assert "--pipeline-parallel-size 1" in vllm.text and "Untested on hardware" in vllm.text
    # Both replicas have a half of the batch of 16, of 2,048 tokens each.
    assert vllm.text.count("--max-num-seqs 8 --max-model-len 2048 --port") == 2
    assert "CUDA_VISIBLE_DEVICES=0,1" in torchrun.text and "--nproc-per-node 2" in torchrun.text
    several, ranks = launch_commands(large, workflow.place(large))
    assert "several nodes" in several.unsupported_reason and not several.text
    assert ranks.text.count("torchrun --nnodes 4") == 4 and "rank 15: stage 15, layers 77-80" in ranks.text
    part = workflow.place(example()).segments[0]
    for gpu in (
        "--rdzv-conf=x/gpu0",
        "-/gpu0",
        10_000,
    ):  # an option of the shell's command, or no number of a GPU
        outcome = replace(workflow.place(example()), segments=(replace(part, gpu_ids=(gpu, "node0/gpu1")),))
        assert all(one.unsupported_reason and not one.text for one in launch_commands(tiny, outcome))
    outcome = replace(workflow.place(example()), segments=(replace(part, batch_per_gpu=(9.0, 7.0)),))
    assert "unequal parts" in launch_commands(tiny, outcome)[0].unsupported_reason


def test_a_decode_with_cut_layers_is_launched_with_what_its_memory_was_reckoned_for():
    request = build_request(
        "llama-3.1-70b", "1x8xH100-SXM5-80GB", batch_size=32, max_gpus_per_segment=4, split="tensor",
        sequences_in_flight=48, prefill_chunk=16,
    )  # fmt: skip
    outcome = workflow.place(request)
    vllm, torchrun = launch_commands(request, outcome)
    sizes = {len(part.gpu_ids) for part in outcome.segments}
    assert len(sizes) == 1 and sizes != {1}
    size, stages = sizes.pop(), len(outcome.segments)
    assert f"--pipeline-parallel-size {stages} --tensor-parallel-size {size} --max-num-seqs 48" in vllm.text
    assert "--max-model-len 2048 --enable-chunked-prefill --max-num-batched-tokens 512" in vllm.text
    order = [str(gpu).rpartition("gpu")[2] for part in outcome.segments for gpu in part.gpu_ids]
    assert f"CUDA_VISIBLE_DEVICES={','.join(order)} VLLM_PP_LAYER_PARTITION=" in vllm.text
    assert vllm.text.count("vllm serve") == 1 and f"part {size} of {size} of each" in torchrun.text


def test_sequences_in_flight_and_cut_layers_are_tried_at_once(page, workspace):
    place_it(workspace, "70B", example("placements/decode_70b"))
    opened = page("place", workspace)
    assert "1,024 sequences in flight" in said(opened)
    number(opened, "Sequences in flight").set_value(128).run()
    assert "Tried, not kept: sequences in flight a batch a segment → 128" in said(opened)
    assert metrics(opened)["Bounded by"] == "Sequences in flight" and "128 sequences get a token" in said(
        opened
    )
    share = next(element for element in opened.radio if str(element.key).startswith("split "))
    share.set_value("tensor").run()
    assert "split every layer cut" in said(opened) and not opened.exception
    # Speeds of a linear rule know no cut layers, and no phase.
    place_it(workspace, "tiny", example())
    tiny = page("place", workspace)
    choose = field(tiny, "selectbox", "Placement")
    choose.set_value("tiny").run()
    share = next(element for element in tiny.radio if str(element.key).startswith("split "))
    assert len(share.options) == 2
    assert not [element for element in tiny.number_input if str(element.key).startswith("in flight ")]


def test_a_new_decode_has_its_sequences_and_its_split():
    asked = {
        "phase": "decode", "sequence_length": 128, "batch_size": 4, "split": "tensor", "sequences_in_flight": 12,
    }  # fmt: skip
    config = '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, '
    config += '"num_hidden_layers": 3, "vocab_size": 100, "torch_dtype": "float16"}'
    for model, text in ((new_form.CUSTOM_CONFIG, config), ("llama-3.1-8b", None)):
        request = new_form.build_placement(model, "1x2xA100-80GB", text, None, asked)
        assert request.split == "tensor" and request.model.sequences_in_flight == 12
