"""A group of GPUs without MIG takes the place of slices, by the script."""

import pytest

from tests.support.apply.cases import PLAN
from tests.support.transition.engines import engine_tenant, group_gpus
from tests.support.transition.instances import plan_of, tenant
from torchsplit_core.apply import HostChange, change_script
from torchsplit_core.transition import plan_transition
from torchsplit_core.values import HostState, StateGpu, StateInstance

pytestmark = pytest.mark.slow


def script() -> str:
    """From a slice on the first of two GPUs to an engine on both."""
    cut = (StateInstance("3g.40gb", 0, None, (tenant("bert"),)),)
    state = HostState(
        (
            StateGpu("n/gpu0", "A100-80GB", "GPU-0", True, cut),
            StateGpu("n/gpu1", "A100-80GB", "GPU-1", False, ()),
        )
    )
    outcome = plan_transition(plan_of(group_gpus("pair", "n/gpu0", "n/gpu1")), state)
    return change_script(HostChange.of(outcome, state, "n", PLAN))


def test_the_slices_go_mig_goes_off_and_the_engine_starts_on_each_gpu(fake_host):
    cut = {"name": "3g.40gb", "start": 0, "id": 1}
    first = {"type": "A100-80GB", "mode": "Enabled", "gi": [cut], "ci": [{"gi": 1, "name": "3g.40gb"}]}
    fake_host.set(gpu0=first | {"uuid": "GPU-0"}, gpu1={"type": "A100-80GB", "uuid": "GPU-1"})
    hook = 'echo "$TORCHSPLIT_MODEL $TORCHSPLIT_GPU $TORCHSPLIT_GROUP" >> log'
    hooks = {"TORCHSPLIT_ON_STOP": f"echo stop; {hook}", "TORCHSPLIT_ON_START": hook}
    stopped = fake_host.run(script(), "--apply", **hooks)
    # The script switches no mode: it says the command, and goes on once that is done.
    assert stopped.returncode == 1 and "nvidia-smi -i GPU-0 -mig 0" in stopped.stderr
    gpus = fake_host.state["gpus"]
    assert gpus["0"]["gi"] == []
    fake_host.alter(gpus=gpus | {"0": gpus["0"] | {"mode": "Disabled"}})
    done = fake_host.run(script(), "--apply", **hooks)
    assert done.returncode == 0, done.stderr
    log = (fake_host.directory / "log").read_text().split("\n")
    assert "bert n/gpu0 " in log
    assert {"chat n/gpu0 pair", "chat n/gpu1 pair"} <= set(log)


def test_the_same_engine_by_another_name_needs_nothing():
    member = engine_tenant("chat", "other")
    state = HostState(
        tuple(
            StateGpu(f"n/gpu{i}", "A100-80GB", f"GPU-{i}", False, (StateInstance("", 0, None, (member,)),))
            for i in (0, 1)
        )
    )
    assert plan_transition(plan_of(group_gpus("pair", "n/gpu0", "n/gpu1")), state).steps == ()
