"""What runs now: the choice, its address, and states that are added from files and texts."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from app.plans.deploy import state_choice
from tests.support.app.page import press, run, said
from tests.support.app.values import plan
from torchsplit_core.files import write_text
from torchsplit_core.hardware.discovery import open_nvml
from torchsplit_core.hardware.nvml import NvmlFault
from torchsplit_core.transition import state_of_plan
from torchsplit_core.values import HostState, StateGpu
from torchsplit_core.workspace.store import Workspace

SMI = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n"
LGI = "No GPU instances found: Not Found\n"


def add(page: AppTest, **files: tuple[str, str]) -> AppTest:
    for key, (name, text) in files.items():
        field = "state-file" if key == "state" else f"state-text {name}"
        page.file_uploader(key=field).upload(
            f"{key}.txt" if key != "state" else name, text.encode(), "text/plain"
        )
    return press(page, "Add and choose")


@pytest.fixture
def deploy(page, filled) -> Callable[..., AppTest]:
    return lambda **query: page("deploy", filled, **query)


def chosen(workspace: Workspace, name: str) -> HostState:
    state: HostState = workspace.get("host_state", name)
    return state


def test_the_choice_stands_in_the_address_and_an_address_is_a_choice(deploy):
    opened = deploy()
    box = opened.selectbox(key=state_choice.KEY)
    assert box.value is None and box.options == ["Nothing: the GPUs are empty", "Plan that runs: review"]
    box.select("plan:review")
    run(opened)
    assert opened.query_params["from"] in ("plan:review", ["plan:review"])
    del opened.query_params["from"]
    run(opened)
    assert opened.selectbox(key=state_choice.KEY).value is None
    again = deploy(**{"from": "nothing"})
    assert again.selectbox(key=state_choice.KEY).value == "nothing" and "Today" in said(again)


def test_an_address_with_a_state_that_is_gone_says_so(deploy):
    opened = deploy(**{"from": "host_state:gone"})
    assert ["which this workspace does not have" in box.value for box in opened.error] == [True]
    assert "Untouched tenants" not in said(opened)


def test_a_state_from_a_file_is_stored_and_chosen(deploy, filled):
    state = state_of_plan(plan())
    opened = add(deploy(), state=("today.json", write_text(state)))
    assert chosen(filled, "today") == state
    assert opened.query_params["from"] in ("host_state:today", ["host_state:today"])
    assert "The state today of 1 GPU is in the workspace." in said(opened)
    assert "Nothing to do: the plan runs already." in said(opened)


def test_texts_of_a_host_become_a_state(deploy, filled):
    opened = deploy()
    opened.text_input(key="state-host").set_value("node3")
    add(opened, smi=("nvidia-smi -L", SMI), lgi=("nvidia-smi mig -lgi", LGI))
    assert [(gpu.id, gpu.type) for gpu in chosen(filled, "node3").gpus] == [("node3/gpu0", "A100-80GB")]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "Add a state: has no file"),
        ({"smi": ("nvidia-smi -L", "hello")}, "smi.txt"),
        ({"lgi": ("nvidia-smi mig -lgi", LGI)}, "the types of the GPUs are not given"),
        ({"state": ("p.json", '{"format": "torchsplit.host_state"')}, "p.json"),
        ({"state": ("p.json", "{}"), "smi": ("nvidia-smi -L", SMI)}, "comes with texts"),
    ],
)
def test_a_bad_file_is_one_message_and_nothing_is_stored(files, words, deploy, filled):
    opened = add(deploy(), **files)
    (box,) = opened.error
    assert words in box.value.replace("\\", "")
    assert not filled.artifacts("host_state") and opened.selectbox(key=state_choice.KEY).value is None


def test_a_file_of_another_format_is_refused(deploy, filled):
    text = filled.get_bytes("plan_request", "review").decode()
    (box,) = add(deploy(), state=("request.json", text)).error
    assert "is neither a host state nor a plan" in box.value


class Driver:
    """A driver with one empty GPU."""

    origin = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def gpu_count(self):
        return 1


def test_this_host_is_offered_where_its_driver_has_gpus(deploy, monkeypatch):
    monkeypatch.setattr(state_choice, "open_nvml", Driver)
    state = HostState((StateGpu("here/gpu0", "A100-80GB", None, False),), "2026-11-27T01:00:00Z")
    monkeypatch.setattr(state_choice, "state_of_driver", lambda *_, **__: (state, ("GPU 1 is left out.",)))
    opened = deploy(**{"from": "host"})
    assert "This host, by its driver" in opened.selectbox(key=state_choice.KEY).options
    assert "GPU 1 is left out." in said(opened) and "gpu0 is here/gpu0" in said(opened)
    later = replace(state, gpus=(replace(state.gpus[0], id="later/gpu0"),))
    monkeypatch.setattr(state_choice, "state_of_driver", lambda *_, **__: (later, ()))
    assert "later/gpu0" not in said(run(opened))
    assert "gpu0 is later/gpu0" in said(press(opened, "Read again"))


def test_a_host_without_a_driver_says_so(deploy, monkeypatch):
    with pytest.raises(NvmlFault), open_nvml():
        pass
    (box,) = deploy(**{"from": "host"}).error
    assert box.value.replace("\\", "").startswith("this host: has no driver to ask")
