"""A child answers, or each way of not answering becomes one clear fault and leaves nothing running."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.isolation.processes import began, gone, mark, running
from torchsplit_core.isolation import ChildFault, Limits, default_memory_bytes, run_limited
from torchsplit_core.values import InputFault, InternalFault

pytestmark = pytest.mark.slow


def call(function: str, limits: Limits | None = None, **arguments: Any) -> Any:
    return run_limited(
        f"tests.support.isolation.targets:{function}", arguments, limits=limits, subject="the model"
    )


def test_the_result_and_progress_come_back_and_the_room_is_private_and_empty():
    heard = []
    outcome = run_limited(
        "tests.support.isolation.targets:echo",
        {"n": [1, "ü"]},
        progress=lambda share, text: heard.append((share, text)),
    )
    assert outcome["got"] == {"n": [1, "ü"]}
    assert heard == [(0.5, "half")]
    assert outcome["files"] == []
    assert outcome["cwd"] != str(Path.cwd())
    assert not Path(outcome["cwd"]).exists()


def test_an_answer_larger_than_a_pipe_comes_whole():
    assert call("large") == list(range(300_000))


def test_an_answer_in_parts_comes_part_by_part():
    heard = []
    outcome = run_limited(
        "tests.support.isolation.targets:pieces", {"count": 4},
        progress=lambda share, text: heard.append(share), receive=lambda part: heard.append(part[0]),
    )  # fmt: skip
    assert outcome is None
    assert heard == [0, 0, 0.25, 1, 0.5, 2, 0.75, 3]


def test_a_fault_after_some_parts_is_the_fault():
    heard = []
    with pytest.raises(InputFault, match="the last part: is missing"):
        run_limited(
            "tests.support.isolation.targets:pieces", {"count": 2, "fail": True}, receive=heard.append
        )
    assert len(heard) == 2


def test_parts_that_nobody_asked_for_are_refused():
    with pytest.raises(InputFault, match="the model"):
        call("pieces", count=1)


def test_secrets_of_the_environment_stay_here(monkeypatch):
    monkeypatch.setenv("MY_SECRET_TOKEN", "hush")
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", "refused")
    seen = call("environment")
    assert seen["TORCHSPLIT_EXECUTION"] == "refused"  # the child itself may have to refuse
    assert "hush" not in seen.values()
    assert seen["HOME"] == seen["TMPDIR"]


def test_an_input_fault_arrives_as_it_was():
    with pytest.raises(InputFault) as caught:
        call("fault")
    original = InputFault("somewhere", "has {'a': \"it's\"}", "The remedy.")
    assert str(caught.value) == str(original)
    assert caught.value.parts == original.parts


def test_our_own_fault_stays_our_own():
    with pytest.raises(InternalFault, match="a promise"):
        call("internal")


@pytest.mark.parametrize(("function", "limits", "arguments", "said"), [
    ("error", Limits(), {}, r"KeyError: 'missing thing' \(targets.py:\d+\)"),
    ("chained", Limits(), {}, r"raised KeyError: 'missing thing' \(targets.py:\d+\)"),
    ("hang_after_error", Limits(wall_s=60.0), {}, "ValueError: with a thread left"),
    ("leave", Limits(), {}, r"status 1 without an answer.*farewell"),
    ("crash", Limits(), {}, "SIGSEGV"),
    ("spin", Limits(cpu_s=1), {}, "used up its 1 s of processor time"),
    ("hoard", Limits(memory_bytes=2**30), {"bytes": 2**31}, r"out of memory.*1\.0 GiB.*memory limit"),
    ("write", Limits(file_bytes=2**20), {"bytes": 2**21}, "OSError.*File too large"),
    ("open_many", Limits(open_files=40), {"count": 60}, "Too many open files"),
    ("lie", Limits(), {"line": "not json"}, "broke the form of its answers"),
    ("lie", Limits(), {"line": '{"progress": 3}'}, "broke the form of its answers"),
    ("lie", Limits(), {"line": "[" * 100_000}, "broke the form of its answers"),
])  # fmt: skip
def test_each_way_to_fail_is_one_clear_fault(function, limits, arguments, said):
    with pytest.raises(InputFault, match=f"^the model: .*{said}"):
        call(function, limits, **arguments)


def test_within_its_memory_the_same_work_succeeds():
    assert call("hoard", Limits(memory_bytes=2**32), bytes=2**28) == 2**28
    assert call("hoard", Limits(memory_bytes=None), bytes=2**28) == 2**28


def test_time_over_ends_the_child_and_what_it_started(level):
    name = mark()
    with pytest.raises(InputFault, match=r"still running after 1\.5 s.*time limit"):
        call("forever", Limits(wall_s=1.5), mark=name)
    assert gone(name)


def test_a_listener_that_raises_cancels_the_child_and_what_it_started(level):
    name = mark()

    def stop(share, message):
        assert began(name)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_limited("tests.support.isolation.targets:forever", {"mark": name}, progress=stop)
    assert gone(name)


def test_what_a_child_leaves_running_is_ended_and_does_not_hold_the_answer(level):
    name = mark()
    assert call("daemon", Limits(wall_s=60.0), mark=name) == "left one"
    assert running(name) == []  # before the answer is handed on, not some time after


def test_the_default_memory_limit_leaves_room_on_this_machine():
    assert default_memory_bytes() >= 4 * 2**30


def test_a_child_that_falls_silent_ends_with_what_it_said_kept():
    for silent_s in (2.5, 10.0, 40.0):  # as long as this machine needs to wake the child in time
        heard = []
        with pytest.raises(ChildFault, match=f"still running after {silent_s:g} s") as caught:
            run_limited(
                "tests.support.isolation.targets:silent_after", {"gap_s": 0.4 * silent_s},
                limits=Limits(wall_s=250, silent_s=silent_s), receive=heard.append,
            )  # fmt: skip
        assert caught.value.kind == "time_limit"
        if len(heard) == 3:
            break
    assert heard == [0, 1, 2]  # together longer than the silence that is allowed


def test_names_added_to_the_environment_reach_the_child():
    outcome = run_limited(
        "tests.support.isolation.targets:environment", {}, environment={"CUDA_VISIBLE_DEVICES": "MIG-1"}
    )
    assert outcome["CUDA_VISIBLE_DEVICES"] == "MIG-1"
