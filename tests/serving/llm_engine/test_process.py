"""What the process of an engine says where it does not serve."""

from contextlib import contextmanager

import pytest

from torchsplit_core import extras
from torchsplit_core.serving.llm_engine import process
from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings
from torchsplit_core.values import InputFault

SETTINGS = LlmEngineSettings("config.json", "tiny")


def child_that_says(*messages):
    @contextmanager
    def run_child(module, command):
        assert module == process.LLM_ENGINE and command["source"] == "config.json"
        yield 7, iter(messages)

    return run_child


@pytest.mark.parametrize(("messages", "words"), [
    ([{"fault": ["config.json", "cannot be read", "Name a file."]}], "config.json: cannot be read. Name a file."),
    ([], "the engine: ended before it was ready"),
])  # fmt: skip
def test_a_child_that_does_not_serve_is_said(monkeypatch, messages, words):
    monkeypatch.setattr(process, "run_child", child_that_says(*messages))
    with pytest.raises(InputFault) as fault, process.llm_engine(SETTINGS):
        pass
    assert words in str(fault.value)


def test_an_engine_that_is_gone_is_said(monkeypatch):
    monkeypatch.setattr(process, "run_child", child_that_says({"ready": "http://127.0.0.1:9"}))
    with (
        process.llm_engine(SETTINGS) as engine,
        pytest.raises(InputFault, match="gives no answer to /torchsplit/steps"),
    ):
        engine.take_steps()


def test_what_it_needs_is_an_extra(monkeypatch):
    monkeypatch.setitem(extras.EXTRA_MODULES, "llm", ("json", "absent_package"))
    with pytest.raises(InputFault, match="absent_package"), process.llm_engine(SETTINGS):
        pass
