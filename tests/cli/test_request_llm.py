"""`request --llm`: LLMs by a published name or a config.json, their rates, lengths and limits."""

import json

import pytest

from tests.support.paths import EXAMPLES
from torchsplit_core.cli.command import main

FLEET = ("--gpus", "8xH100-SXM5-80GB:either")
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1024,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def written(tmp_path, *words):
    out = tmp_path / "request.json"
    assert main(["request", *words, *FLEET, "-o", str(out)]) == 0
    return json.loads(out.read_text())


def test_options_by_name_and_for_all_and_defaults(tmp_path):
    data = written(
        tmp_path, "--llm", "chat=llama-3.1-8b,large=llama-3.1-70b", "--rate", "chat=20,large=2", "--max-ttft", "500",
        "--prompt", "large=2000", "--length-cv", "large=0.5",
    )  # fmt: skip
    chat, large = data["models"]
    assert (chat["name"], chat["demand_rps"], large["demand_rps"]) == ("chat", 20.0, 2.0)
    assert chat["llm"]["prompt_tokens"] == {"kind": "constant", "value": 1024}
    assert large["llm"]["prompt_tokens"] == {"kind": "lognormal", "mean": 2000.0, "cv": 0.5}
    assert [model["llm"]["max_ttft_ms"] for model in (chat, large)] == [500.0, 500.0]
    assert chat["llm"].get("max_tpot_ms") is None and data["gpus"][0]["mig"] == "either"


def test_a_config_stands_beside_profiles_and_a_path_may_have_a_comma(tmp_path):
    path = tmp_path / "tiny,small.json"
    path.write_text(json.dumps(CONFIG))
    data = written(tmp_path, str(EXAMPLES / "profile.json"), "--llm", f"tiny={path}", "--output", "tiny=10")
    tiny = data["models"][-1]
    assert tiny["name"] == "tiny" and len(data["models"]) > 1
    assert tiny["llm"]["config"]["layers"] == 4
    assert tiny["llm"]["output_tokens"]["value"] == 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--llm", "chat"), "'chat' is not NAME=MODEL"),
        (("--llm", "chat=lama-3.1-8b"), "lama-3.1-8b"),
        (("--llm", "chat=llama-3.1-8b", "--llm", "chat=llama-3.1-70b"), "names an LLM twice"),
        (("--llm", "chat=llama-3.1-8b", "--rate", "chta=5"), "Did you mean chat?"),
        (("--llm", "chat=llama-3.1-8b", "--rate", "-5"), "not a finite number above 0"),
        (("--llm", "chat=llama-3.1-8b", "--prompt", "10.5"), "not a whole number of tokens"),
    ],
)
def test_wrong_words_are_named(words, message, capsys):
    assert main(["request", *words, *FLEET]) == 2
    assert message in capsys.readouterr().err
