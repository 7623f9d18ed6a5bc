"""Changes of a host on replayed listings: applied, repeated, cut off, undone, refused."""

import json
import os
import random
import signal
import subprocess
import sys
from itertools import product

import pytest

from tests.support.apply.cases import (
    A30,
    AFTER,
    BEFORE,
    PLAN,
    Host,
    alter,
    host,
    placed,
    stands,
    step,
    straight,
    tenant,
)
from tests.support.seeds import in_blocks, repeated
from tests.support.transition.instances import random_case
from torchsplit_core.apply import ApplySettings, HostChange, apply_change, journal, undo_change
from torchsplit_core.hardware import gpu_type, legal_layouts
from torchsplit_core.hardware.nvml import NvmlFault
from torchsplit_core.transition import plan_transition
from torchsplit_core.values import ForeignTenant, InputFault, InternalFault

STEPS = straight(A30, BEFORE, AFTER)
BERT, CLIP = tenant("bert"), tenant("clip")
STOP = step("stop", BEFORE[0], BERT)
MOVE = [STOP, *STEPS, step("start", ("2g.12gb", 0), BERT)]
RUNNING = {BEFORE[0]: [BERT], BEFORE[2]: [CLIP]}


def random_pairs(kind, count):
    layouts = [placed(layout) for layout in legal_layouts(gpu_type(kind))]
    pairs = [(kind, *pair) for pair in product(layouts, repeat=2)] if count is None else []
    chosen = random.Random(38)
    return pairs or [(kind, *chosen.choices(layouts, k=2)) for _ in range(count)]


A30_PAIRS = random_pairs(A30, None)
random.Random(38).shuffle(A30_PAIRS)


@in_blocks("kind, before, after", A30_PAIRS, kept=1)
def test_every_layout_of_an_a30_to_every_other(kind, before, after, tmp_path):
    walk(tmp_path, kind, before, after)


@in_blocks("kind, before, after", random_pairs("A100-40GB", 300), kept=1)
def test_layouts_of_an_a100_to_others(kind, before, after, tmp_path):
    walk(tmp_path, kind, before, after)


def walk(folder, kind, before, after):
    """There, again, back, again: each end is reached, and what stays is never touched."""
    where = Host(folder, before, kind=kind)
    change = where.change(*straight(kind, before, after))
    if set(before) == set(after):
        assert where.apply(change) is None and not where.path.exists()
        return
    stayed = {item.uuid for item in change.state.gpus[0].instances if (item.profile, item.start) in after}
    assert where.apply(change).is_finished
    assert stands(where.nvml) == set(after)
    assert stayed <= {item.uuid for item in where.nvml.mig_devices(0)}
    text = where.nvml.path.read_text()
    assert where.apply(change) is None and where.nvml.path.read_text() == text
    assert where.undo().is_finished and stands(where.nvml) == set(before)
    assert stayed <= {item.uuid for item in where.nvml.mig_devices(0)}
    assert where.undo() is None
    where.path.unlink()


@repeated("seed", range(100), 5)
def test_transitions_of_the_planner_end_as_they_say(seed, tmp_path):
    plan, now = random_case(seed)
    outcome = plan_transition(plan, now)
    if outcome.status == "infeasible":
        return
    layouts = [[(item.profile, item.start) for item in gpu.instances] for gpu in now.gpus]
    nvml = host(tmp_path, [gpu.type for gpu in now.gpus], *layouts)
    path = tmp_path / "h.journal.json"
    path.unlink(missing_ok=True)
    hooks = ApplySettings("true", "true", 0)
    change = HostChange.of(outcome, now, "h", PLAN)
    apply_change(nvml, change, path, hooks, lambda line: None)
    mapped = {gpu.host_gpu: {(item.profile, item.start) for item in gpu.instances} for gpu in outcome.mapping}
    for index, gpu in enumerate(now.gpus):
        others = {(item.profile, item.start) for item in gpu.instances if item.foreign}
        assert stands(nvml, index) == mapped.get(gpu.id, set()) | others
    if path.exists():
        undo_change(nvml, "h", path, hooks, lambda line: None)
    assert [stands(nvml, index) for index in range(len(layouts))] == list(map(set, layouts))


CHANGING = {"create", "destroy", "set", "reset"}
"""Words of the calls that change the GPU."""


class Mortal:
    """Counts the calls of the driver and the writes of the journal, and kills its process at one of them."""

    def __init__(self, nvml, monkeypatch, death):
        self.nvml, self.count, self.death = nvml, 0, death
        write = journal.write_journal
        for module in ("journal", "change"):
            monkeypatch.setattr(f"torchsplit_core.apply.{module}.write_journal", self.mortal(write))

    def mortal(self, function):
        def call(*arguments):
            for work in (None, function):
                result = work and work(*arguments)
                self.count += 1
                if self.count == self.death:
                    os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    def __getattr__(self, name):
        value = getattr(self.nvml, name)
        return self.mortal(value) if CHANGING & set(name.split("_")) else value


def dies(where, work, monkeypatch, death):
    """Whether a child process that does the work is killed at that moment; it ends by itself where there is none."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(Mortal(where.nvml, monkeypatch, death))
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


@repeated(("cut", "finish"), list(product(("apply", "undo"), repeat=2)))
def test_killed_at_any_moment_it_ends_in_the_new_or_the_old_state(cut, finish, tmp_path, monkeypatch):
    where, moments = Host(tmp_path, BEFORE), 0
    old, change = where.nvml.path.read_text(), where.change(*MOVE, tenants=RUNNING)

    def work(nvml):
        where.apply(change, nvml=nvml) if cut == "apply" else where.undo(nvml=nvml)

    where.apply(change)
    new, journal_of_new = where.nvml.path.read_text(), where.path.read_text()
    is_killed = True
    while is_killed:
        where.nvml.path.write_text(old if cut == "apply" else new)
        where.path.unlink(missing_ok=True) if cut == "apply" else where.path.write_text(journal_of_new)
        moments += 1
        is_killed = dies(where, work, monkeypatch, moments)
        if finish == "apply":
            where.apply(change)
            assert stands(where.nvml) == set(AFTER) and where.journal.is_finished, moments
            assert where.apply(change) is None
        elif where.path.exists():  # without a journal nothing has changed
            where.undo()
            assert where.undo() is None
        assert stands(where.nvml) == set(AFTER if finish == "apply" else BEFORE), moments
    assert moments > 25


def test_a_step_that_was_begun_is_named_by_the_status(tmp_path, monkeypatch):
    where = Host(tmp_path, BEFORE)
    change = where.change(*MOVE, tenants=RUNNING)
    assert dies(where, lambda nvml: where.apply(change, nvml=nvml), monkeypatch, 12)
    assert where.status() == (
        f"node0: on the way to plan {PLAN[:12]}, 1 of 5 steps is done, step 2 (destroy 1g.6gb at 0 of node0/gpu0) was "
        f"begun. Apply that plan again to finish at it, or --undo to go back. Journal: {where.path}\n"
    )
    where.undo()
    assert "as before plan" in where.status()
    where.apply(change)
    assert f"node0: as plan {PLAN[:12]} has it (5 of 5 steps are done). --undo" in where.status()


def test_after_a_reboot_in_the_middle_both_ends_are_reached(tmp_path, monkeypatch):
    for finish in ("apply", "undo"):
        where = Host(tmp_path, BEFORE)
        where.path.unlink(missing_ok=True)
        change = where.change(*MOVE, tenants=RUNNING)
        assert dies(
            where, lambda nvml, where=where, change=change: where.apply(change, nvml=nvml), monkeypatch, 12
        )
        alter(where.nvml, instances=[])
        where.apply(change) if finish == "apply" else where.undo()
        assert stands(where.nvml) == set(AFTER if finish == "apply" else BEFORE)
        assert any("2g.12gb at 2 of node0/gpu0 was gone" in line for line in where.said)


def test_hooks_are_told_each_tenant_and_its_slice(tmp_path):
    where = Host(tmp_path, BEFORE)
    log = tmp_path / "log"
    words = " ".join(
        f"$TORCHSPLIT_{name}" for name in ("MODEL", "STAGE", "BATCH_SIZE", "GPU", "PROFILE", "START", "UUID")
    )
    settings = ApplySettings(f"echo stop {words} >> {log}", f"sleep 1000 & echo start {words} >> {log}", 0)
    where.apply(where.change(*MOVE, tenants=RUNNING), settings)
    (made,) = (
        item.uuid for item in where.nvml.mig_devices(0) if item.uuid not in ("MIG-0-1", "MIG-0-2", "MIG-0-3")
    )
    assert log.read_text().splitlines() == [
        "stop bert whole 8 node0/gpu0 1g.6gb 0 MIG-0-1",
        f"start bert whole 8 node0/gpu0 2g.12gb 0 {made}",
    ]
    where.undo(settings)
    assert [line.split()[:2] for line in log.read_text().splitlines()[2:]] == [
        ["stop", "bert"],
        ["start", "bert"],
    ]


def test_a_hook_that_fails_stops_the_change_and_it_goes_on_later(tmp_path):
    where = Host(tmp_path, BEFORE)
    change = where.change(*MOVE, tenants=RUNNING)
    with pytest.raises(
        InputFault, match=r"--on-stop: ended with 3 for bert .*it says: no unit; nothing further was done"
    ):
        where.apply(change, ApplySettings("echo no unit; exit 3", "true", 0))
    assert stands(where.nvml) == set(BEFORE)
    where.apply(change, ApplySettings("true", "true", 0))
    assert stands(where.nvml) == set(AFTER)


def test_one_of_several_tenants_needs_a_hook_to_stop(tmp_path):
    where = Host(tmp_path, BEFORE)
    change = where.change(STOP, tenants={BEFORE[0]: [BERT, CLIP]})
    with pytest.raises(
        InputFault, match=r"--on-stop: is not given for bert, .* while others run on beside it"
    ):
        where.apply(change)
    assert not where.path.exists()
    where.apply(change, ApplySettings("true", None, 0))
    later = where.change(*MOVE, tenants=RUNNING)
    swapped = where.change(step("start", BEFORE[2], BERT), *MOVE, tenants=RUNNING)
    where.path.unlink()
    with pytest.raises(InputFault, match="--on-start: is not given beside --on-stop"):
        where.apply(swapped, ApplySettings("true", None, 0))
    where.apply(later, ApplySettings("true", None, 0))


def test_a_process_on_an_instance_to_be_destroyed_stops_it_and_is_not_ended(tmp_path):
    where = Host(tmp_path, BEFORE)
    change = where.change(*STEPS)
    alter(where.nvml, processes=[{"pid": 4711, "gpu_instance": 2}])
    with pytest.raises(
        InputFault,
        match=r"a process runs on the instance to be destroyed, 1g\.6gb at 1: process 4711 .*; nothing further was "
        r"done: 1 of 3 steps is done, step 2",
    ):
        where.apply(change)
    assert stands(where.nvml) == {BEFORE[1], BEFORE[2]}
    assert where.nvml.processes(0) == (4711,)
    alter(where.nvml, processes=[])
    where.apply(change)
    assert stands(where.nvml) == set(AFTER)


def test_what_a_hook_stops_may_take_a_moment_to_end(tmp_path, monkeypatch):
    where = Host(tmp_path, BEFORE)
    alter(where.nvml, processes=[{"pid": 4711, "gpu_instance": 1}])
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            alter(where.nvml, processes=[])

    monkeypatch.setattr("time.sleep", sleep)
    where.apply(where.change(*MOVE, tenants=RUNNING), ApplySettings("true", "true", 60))
    assert len(slept) == 3 and stands(where.nvml) == set(AFTER)


def test_the_driver_may_call_an_instance_in_use_for_a_moment(tmp_path, monkeypatch):
    where = Host(tmp_path, BEFORE)

    class Busy:
        left = 3

        def __getattr__(self, name):
            return getattr(where.nvml, name)

        def destroy_gpu_instance(self, *arguments):
            self.left -= 1
            if self.left >= 0:
                raise NvmlFault("in_use", "In use by another client")
            where.nvml.destroy_gpu_instance(*arguments)

    monkeypatch.setattr("time.sleep", lambda seconds: None)
    where.apply(where.change(*STEPS), nvml=Busy())
    assert stands(where.nvml) == set(AFTER)
    stubborn = Busy()
    stubborn.left = 10**6
    other = Host(tmp_path, BEFORE)
    other.path.unlink()
    with pytest.raises(
        InputFault, match="In use by another client; nothing further was done: 0 of 3 steps are done"
    ):
        other.apply(other.change(*STEPS), nvml=stubborn)


def test_a_driver_that_only_says_it_is_done_is_a_surprise(tmp_path):
    where = Host(tmp_path, BEFORE)

    class Idle:
        def __getattr__(self, name):
            return getattr(where.nvml, name)

        def create_compute_instance(self, *arguments):
            return 0

    change = where.change(*STEPS)
    with pytest.raises(InputFault, match=r"2g\.12gb at 0 of node0/gpu0 has no compute instance .* step 3"):
        where.apply(change, nvml=Idle())
    where.apply(change)
    assert stands(where.nvml) == set(AFTER)


@pytest.mark.parametrize(("fields", "difference"), [
    ({"instances": [{"id": 1, "profile": "4g.24gb", "start": 0, "compute_instance": 0, "uuid": "MIG-x"}]},
     r"1g\.6gb at 0 of node0/gpu0 is not there"),
    ({"instances": []}, r"1g\.6gb at 0 of node0/gpu0 is not there"),
    ({"mig": "off", "instances": []}, "MIG mode of node0/gpu0 is off"),
    ({"uuid": "GPU-other"}, "no GPU that answers has GPU-0"),
    ({"lost": True}, "no GPU that answers has GPU-0"),
    ({"pci_device_id": "0x20B010DE"}, "is of type A100-40GB, in the state A30-24GB"),
])  # fmt: skip
def test_a_state_that_is_older_than_the_host_is_refused(fields, difference, tmp_path):
    where = Host(tmp_path, BEFORE)
    change = where.change(*STEPS)
    alter(where.nvml, **fields)
    text = where.nvml.path.read_text()
    with pytest.raises(InputFault, match=difference):
        where.apply(change)
    assert where.nvml.path.read_text() == text and not where.path.exists()


def test_a_slice_made_anew_is_another_slice(tmp_path):
    where = Host(tmp_path, BEFORE)
    change = where.change(*STEPS)
    rows = json.loads(where.nvml.path.read_text())["gpus"][0]["instances"]
    alter(where.nvml, instances=[*rows[:2], rows[2] | {"uuid": "MIG-new"}])
    with pytest.raises(
        InputFault,
        match=r"older than the host: 2g\.12gb at 2 of node0/gpu0 has the UUID MIG-new, in the state MIG-0-3",
    ):
        where.apply(change)


def test_what_is_there_already_needs_nothing(tmp_path):
    where = Host(tmp_path, BEFORE)
    change = where.change(*STEPS)
    host(tmp_path, A30, AFTER)
    assert where.apply(change) is None and not where.path.exists()
    assert "what runs on them was not looked at" in where.said[-1]


def test_somebody_else_changes_the_host_in_between(tmp_path, monkeypatch):
    where = Host(tmp_path, BEFORE)
    change = where.change(*STEPS)
    assert dies(where, lambda nvml: where.apply(change, nvml=nvml), monkeypatch, 12)
    host(tmp_path, A30, (("4g.24gb", 0),))
    for work in (lambda: where.apply(change), where.undo):
        with pytest.raises(
            InputFault, match=r"not where its last change left it .*4g\.24gb at 0 of node0/gpu0 is there"
        ):
            work()
    assert stands(where.nvml) == {("4g.24gb", 0)}


def test_another_plan_waits_for_the_unfinished_one(tmp_path, monkeypatch):
    where = Host(tmp_path, BEFORE)
    change = where.change(*STEPS)
    assert dies(where, lambda nvml: where.apply(change, nvml=nvml), monkeypatch, 12)
    with pytest.raises(
        InputFault, match=f"unfinished change to plan {PLAN[:12]}, not to cdcdcdcdcdcd: 1 of 3 steps is"
    ):
        where.apply(where.change(*STEPS, plan="cd" * 32))
    where.undo()
    where.apply(where.change(*STEPS, plan="cd" * 32))
    assert stands(where.nvml) == set(AFTER)


def test_a_second_apply_at_once_is_refused(tmp_path):
    where = Host(tmp_path, BEFORE)
    change = where.change(*STEPS)
    program = (
        "import sys; from contextlib import ExitStack; from torchsplit_core.files.user_locks import user_lock\n"
        "with ExitStack() as locks:\n    user_lock('apply-node0', locks, None); print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"held\n"
        for work in (lambda: where.apply(change), where.undo):
            with pytest.raises(
                InputFault, match=f"node0: is being changed: process {other.pid} applies a plan there"
            ):
                work()
        other.kill()
    where.apply(change)


@pytest.mark.parametrize(("damage", "why"), [
    (lambda text: text[: len(text) // 2], "is not a readable torchsplit.apply_journal file"),
    (lambda text: "", "is not a readable"),
    (lambda text: "[]", "is not a readable"),
    (lambda text: text.replace('"position": 3', '"position": 4'), "position is 4, not a number from 0 to 3"),
    (lambda text: text.replace('"goal": "new"', '"goal": "old "'), "goal 'old ' is neither new nor old"),
    (lambda text: text.replace('"profile": "2g.12gb"', '"profile": 7'), "is not a readable"),
    (lambda text: text.replace('"version": 1,\n "host"', '"version": 2,\n "host"'), "not torchsplit.apply_journal ver"),
    (lambda text: text.replace(' "host": "node0",\n', ""), "'host' is missing"),
])  # fmt: skip
def test_a_damaged_journal_is_refused(damage, why, tmp_path):
    where = Host(tmp_path, BEFORE)
    change = where.change(*STEPS)
    where.apply(change)
    text = damage(where.path.read_text())
    assert text != where.path.read_text()
    where.path.write_text(text)
    for work in (lambda: where.apply(change), where.undo):
        with pytest.raises(InputFault, match=why):
            work()
    where.path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputFault, match="it is not UTF-8"):
        where.undo()


def test_a_gpu_from_whole_to_slices_and_back_waits_for_its_mode(tmp_path):
    where = Host(tmp_path, (), mig="off")
    whole = ("", 0)
    there = [step("destroy", whole), step("enable_mig"), *(step("create", place) for place in AFTER)]
    change = where.change(step("stop", whole, BERT), *there, whole=[BERT])
    with pytest.raises(
        InputFault,
        match=r"MIG mode is off, the plan needs it on.*`sudo nvidia-smi -i 0 -mig 1 && sudo .* -i 0 --gpu-reset`",
    ):
        where.apply(change)
    assert (
        "2 of 4 steps" not in where.status()
        and "step 3 (enable MIG mode of node0/gpu0) was begun" in where.status()
    )
    alter(where.nvml, mig="on")
    where.apply(change)
    assert stands(where.nvml) == set(AFTER)
    with pytest.raises(InputFault, match=r"MIG mode is on, .*sudo nvidia-smi -i 0 -mig 0 && "):
        where.undo()
    alter(where.nvml, mig="off")
    assert where.undo().is_finished


WHOLE = ("", 0)
TO_SLICES = (
    step("stop", WHOLE, BERT), step("destroy", WHOLE), step("enable_mig"),
    *(step("create", place) for place in AFTER),
)  # fmt: skip
SWITCHING = ApplySettings(drain_s=0, switch_mig_mode=True)


@pytest.mark.parametrize("kind", [A30, "H100-SXM5-80GB"])
def test_mig_mode_is_switched_where_it_is_asked_for_and_an_undo_switches_it_back(kind, tmp_path):
    where = Host(tmp_path, (), kind=kind, mig="off")
    after = AFTER if kind == A30 else (("3g.40gb", 0), ("3g.40gb", 4))
    steps = (*TO_SLICES[:3], *(step("create", place) for place in after))
    where.apply(where.change(*steps, whole=[BERT]), SWITCHING)
    assert stands(where.nvml) == set(after) and where.nvml.gpu(0).mig_current
    # Only Ampere waits for a reset.
    assert any("waits for a reset" in line for line in where.said) is (kind == A30)
    assert where.journal.switches_mig_mode
    assert where.undo().is_finished and where.nvml.gpu(0).mig_current is False


def test_a_process_on_the_gpu_keeps_its_mode(tmp_path):
    where = Host(tmp_path, (), mig="off")
    change = where.change(step("enable_mig"), *(step("create", place) for place in AFTER))
    alter(where.nvml, processes=[{"pid": 4711, "gpu_instance": None}])
    with pytest.raises(InputFault, match=r"whose MIG mode is to be switched.*process 4711"):
        where.apply(change, SWITCHING)
    assert where.nvml.gpu(0).mig_current is False and where.nvml.gpu(0).mig_pending is False
    alter(where.nvml, processes=[])
    assert where.apply(change, SWITCHING).is_finished


@pytest.mark.parametrize("way", ["on", "back"])
def test_a_switch_that_waits_for_its_reset_is_finished_or_undone(way, tmp_path):
    where = Host(tmp_path, (), mig="off")
    change = where.change(*TO_SLICES, whole=[BERT])
    alter(where.nvml, held=True)
    with pytest.raises(InputFault, match=r"its reset, for which MIG mode waits, was refused: In use"):
        where.apply(change, SWITCHING)
    assert where.nvml.gpu(0).mig_pending and not where.nvml.gpu(0).mig_current
    alter(where.nvml, held=False)
    if way == "on":
        # The journal knows that the mode may be switched.
        assert where.apply(change).is_finished and stands(where.nvml) == set(AFTER)
    else:
        assert where.undo().is_finished and where.nvml.gpu(0).mig_current is False


@repeated("death", range(1, 40), 3)
def test_killed_while_the_mode_is_switched_it_goes_on(death, tmp_path, monkeypatch):
    where = Host(tmp_path, (), mig="off")
    change = where.change(*TO_SLICES, whole=[BERT])
    dies(where, lambda nvml: where.apply(change, SWITCHING, nvml), monkeypatch, death)
    where.apply(change, SWITCHING)
    assert stands(where.nvml) == set(AFTER)


def test_a_process_on_a_gpu_left_whole_is_waited_for(tmp_path):
    where = Host(tmp_path, (), mig="off")
    alter(where.nvml, processes=[{"pid": 4711, "gpu_instance": None}])
    change = where.change(step("destroy", ("", 0)), step("enable_mig"), whole=[])
    with pytest.raises(InputFault, match="to be destroyed, whole GPU: process 4711"):
        where.apply(change)


@pytest.mark.parametrize(("steps", "fault"), [
    ([step("create", ("4g.24gb", 0))], "overlaps"),
    ([step("destroy", ("4g.24gb", 0))], "no such instance stands there"),
    ([step("destroy", BEFORE[0])], "tenants run on it"),
    ([step("stop", BEFORE[0], CLIP)], "stops a tenant that does not run there"),
    ([step("disable_mig")], "an instance stands there"),
    ([step("create", ("2g.12gb", 0), gpu=7)], "the state lacks"),
])  # fmt: skip
def test_illegal_steps_are_found_before_anything_changes(steps, fault, tmp_path):
    where = Host(tmp_path, BEFORE)
    text = where.nvml.path.read_text()
    change = where.change(*STEPS, tenants=RUNNING)
    with pytest.raises(InternalFault, match=fault):
        where.apply(where.unfiltered(change, steps))
    assert where.nvml.path.read_text() == text and not where.path.exists()


def test_foreign_tenants_are_never_stopped(tmp_path):
    where = Host(tmp_path, BEFORE)
    alter(where.nvml, processes=[{"pid": 4711, "gpu_instance": 1}])
    foreign = ForeignTenant("process 4711")
    change = where.change(step("stop", BEFORE[0], foreign), *STEPS, tenants={BEFORE[0]: [foreign]})
    called = tmp_path / "called"
    with pytest.raises(
        InputFault, match=r"a process runs on the instance to be left, 1g\.6gb at 0: process 4711"
    ):
        where.apply(change, ApplySettings(f"touch {called}", f"touch {called}", 0))
    assert not called.exists()


def test_without_rights_nothing_begins(tmp_path):
    where = Host(tmp_path, BEFORE)
    change = where.change(*STEPS)
    data = json.loads(where.nvml.path.read_text())
    where.nvml.path.write_text(json.dumps(data | {"permission": False}))
    with pytest.raises(InputFault, match=r"Insufficient Permissions\. Run it as root"):
        where.apply(change)
    assert not where.path.exists()


def test_the_journal_is_on_disk_before_and_after_every_step(tmp_path, monkeypatch):
    where, events = Host(tmp_path, BEFORE), []
    monkeypatch.setattr("os.fsync", lambda handle: events.append("disk"))

    class Noted:
        def __getattr__(self, name):
            if "create" in name or "destroy" in name:
                events.append(name.split("_")[0])
            return getattr(where.nvml, name)

    where.apply(where.change(*STEPS), nvml=Noted())
    # A file and its folder at the beginning, before and after each step; instances are of two parts.
    both = ["disk", "disk"]
    steps = [event for name in ("destroy", "destroy", "create") for event in (*both, name, name, *both)]
    assert events == [*both, *steps]


def test_nothing_was_applied_that_could_be_undone(tmp_path):
    with pytest.raises(InputFault, match="is not there, so nothing that could be undone was applied"):
        Host(tmp_path, BEFORE).undo()


def test_hosts_with_any_name_have_journals_of_their_own(tmp_path):
    names = ["node0", "a/b", "a_b", "..", "", "x" * 300, "ä"]
    paths = {journal.journal_path(tmp_path, name) for name in names}
    assert len(paths) == len(names) and {path.parent for path in paths} == {tmp_path}
