"""Requests from a config.json or a name and from nodes or a matrix, and what starts without the room."""

import json
import re
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file
from torchsplit_core.placement.request.build import build_request
from torchsplit_core.placement.request.decoders import decoder, read_config
from torchsplit_core.placement.request.fleets import list_gpus, matrix_of_csv, parse_nodes, tiered_links
from torchsplit_core.values import InputFault, PlacementModel

SMALL = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32, "torch_dtype": "float32",
}  # fmt: skip


def of_config(config: dict[str, object]) -> PlacementModel:
    return read_config(json.dumps(config), "here", sequence_length=10, batch_size=3)


def test_a_config_gives_weights_and_keys():
    sizes = of_config(SMALL)
    # Query and output 8 x 8, key and value 8 x 4, three products 8 x 16, two norms.
    assert sizes.layer_weight_gib * 2**30 == 4 * (2 * 64 + 2 * 32 + 3 * 128 + 16)
    assert (sizes.layers, sizes.key_value_size, sizes.bytes_per_element) == (2, 4, 4.0)
    assert sizes.active_layer_weight_gib is None


def test_experts_weigh_all_and_work_in_part():
    experts = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    sizes = of_config(SMALL | experts)
    assert sizes.active_layer_weight_gib is not None
    assert (sizes.layer_weight_gib - sizes.active_layer_weight_gib) * 2**30 == pytest.approx(4 * 6 * 3 * 128)
    assert sizes.ffn_size == 32


def test_quantised_weights_are_smaller_and_products_are_not():
    plain = of_config(SMALL | {"torch_dtype": "bfloat16"})
    sizes = of_config(SMALL | {"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}})
    assert sizes.layer_weight_gib * 2**30 == 2 * 64 + 2 * 32 + 3 * 128 + 2 * 16
    assert sizes.bytes_per_element == plain.bytes_per_element == 2.0


@pytest.mark.parametrize(("change", "said"), [
    ({"model_type": "mamba"}, "here: model_type: 'mamba' is none of llama"),
    ({"model_type": "bert"}, "here: model_type: 'bert' is an encoder"),
    ({"hidden_size": None}, "here: hidden_size: is missing"),
    ({"hidden_size": "8"}, "here: hidden_size: is '8', not a whole number"),
    ({"torch_dtype": "int4"}, "here: torch_dtype: 'int4'"),
    ({"torch_dtype": [1]}, r"here: torch_dtype: \[1\] is none of"),
    ({"quantization_config": {"bits": 4}}, "quantization_config: quant_method None is not known"),
    ({"model_type": "llama4", "num_local_experts": 4, "interleave_moe_layer_step": 2}, "1 of 2 layers have experts"),
])  # fmt: skip
def test_a_config_of_another_kind_is_refused(change, said):
    with pytest.raises(InputFault, match=said):
        read_config(json.dumps(SMALL | change), "here", sequence_length=10, batch_size=3)


@pytest.mark.parametrize("text", ["", "[]", "{", "3"])
def test_what_is_no_config_is_refused(text):
    with pytest.raises(InputFault, match=r"^here: "):
        read_config(text, "here", sequence_length=10, batch_size=3)
    with pytest.raises(InputFault, match=r"unknown decoder 'gpt-5'. Known decoders: llama-3\.1-8b"):
        decoder("gpt-5", sequence_length=10, batch_size=3)


def test_nodes_become_gpus_and_tiers_of_links():
    fleet = parse_nodes("1x2xA100-80GB, 2x1xT4-16GB")
    gpus = list_gpus(fleet)
    assert [gpu.id for gpu in gpus] == ["node0/gpu0", "node0/gpu1", "node1/gpu0", "node2/gpu0"]
    assert [gpu.memory_gib for gpu in gpus] == [80.0, 80.0, 16.0, 16.0]
    links = tiered_links(fleet, network_gib_per_s=3.0)
    nvlink = 300e9 / 2**30
    assert links[0] == pytest.approx((0.0, nvlink, 3.0, 3.0))
    assert links[2] == (3.0, 3.0, 0.0, 3.0)
    pcie = tiered_links(parse_nodes("1x2xT4-16GB"), network_gib_per_s=3.0)
    assert pcie[0][1] == pytest.approx(16e9 / 2**30)
    assert tiered_links(fleet, network_gib_per_s=3.0, inside_gib_per_s=9.0)[1][0] == 9.0


@pytest.mark.parametrize("text", ["", "8xA100-80GB", "0x8xA100-80GB", "1x8xA1000", "9999x9999xT4-16GB"])
def test_a_fleet_that_is_none_is_refused(text):
    with pytest.raises(InputFault, match="--fleet"):
        parse_nodes(text)


def test_a_matrix_is_read_from_csv():
    assert matrix_of_csv("0,1.073741824\n2.147483648,0\n\n", "m.csv") == ((0.0, 1.0), (2.0, 0.0))
    with pytest.raises(InputFault, match=r"m.csv: line 1, column 1: 'gpu0'"):
        matrix_of_csv("gpu0,gpu1\n0,1\n", "m.csv")


def test_the_command_takes_a_model_and_a_fleet(tmp_path, capsys):
    out, asked = tmp_path / "out.json", tmp_path / "request.json"
    told = ["place", "llama-3.1-70b", "--fleet", "1x4xH100-SXM5-80GB", "-o", str(out)]
    assert main([*told, "--request", str(asked)]) == 0
    outcome = read_file(out)[1]
    assert outcome.status == "optimal" and outcome.segments[-1].end_layer == 80
    others = [
        re.split("  +", line) for line in capsys.readouterr().err.splitlines() if line.startswith("  --")
    ]
    assert [(line[1], line[-1]) for line in others[:2]] == [
        ("--replicas 4", "the same"),
        ("--split tensor --max-gpus 4", "the same"),
    ]
    assert others[2][1] == "--split tensor --max-gpus 4 --in-flight 32"
    assert re.fullmatch(r"13\d\d\.\d+ tokens/s, 23\.\d+ ms a token, optimal", others[2][-1])
    assert read_file(asked)[1] == build_request("llama-3.1-70b", "1x4xH100-SXM5-80GB")
    assert main(["place", str(asked), "-o", str(tmp_path / "again.json")]) == 0
    assert read_file(tmp_path / "again.json")[1].segments == outcome.segments
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    (tmp_path / "links.csv").write_text("0,5\n5,0\n")
    more = [
        "--matrix", str(tmp_path / "links.csv"), "--batch", "4", "--max-gpus", "2", "--split", "proportional",
    ]  # fmt: skip
    told = ["place", str(tmp_path / "config.json"), "--fleet", "1x1xT4-16GB,1x1xL4-24GB", "-o", str(out)]
    assert main([*told, *more]) == 0
    assert read_file(out)[1].segments[-1].end_layer == 2
    assert main([*told, "--matrix", str(tmp_path / "none.csv")]) == 2
    assert main(["place", str(asked), "--batch", "4"]) == 2
    assert "--batch: is given without --fleet" in capsys.readouterr().err
    assert main([*told, "--batch", "-3", "--request", str(asked)]) == 2
    assert "model.batch_size: " in capsys.readouterr().err


def test_other_commands_start_without_the_room_and_the_room_without_torch():
    program = (
        "import sys, torchsplit_core.cli.command, torchsplit_core.workflow\n"
        "rooms = [name for name in sys.modules if name.startswith('torchsplit_core.placement')]\n"
        "assert not rooms and 'pyomo' not in sys.modules, rooms\n"
        "import torchsplit_core.placement\n"
        "assert 'torch' not in sys.modules and 'pyomo' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
