"""States changed by hand: GPUs, modes, layouts and instances; what stays is as it was, and a state that can be."""

from dataclasses import replace

import pytest

from torchsplit_core.hardware import gpu_type
from torchsplit_core.hardware.host_state.editing import (
    add_gpus,
    is_divided,
    remove_gpus,
    set_instance,
    set_layout,
    set_mode,
)
from torchsplit_core.hardware.host_state.validity import check_state
from torchsplit_core.hardware.layouts import maximal_multisets
from torchsplit_core.values import (
    WHOLE_GPU,
    ForeignTenant,
    HostState,
    InputFault,
    StateGpu,
    StateInstance,
    Tenant,
)

A30 = "A30-24GB"
BERT = Tenant("bert", "whole", "whole", 1.0, 8, 1, 120.0, 3.2)
SLICES = (
    StateInstance("2g.12gb", 0, "MIG-1", (BERT,)),
    StateInstance("1g.6gb", 2, "MIG-2", (ForeignTenant("job"),)),
)
STATE = HostState(
    (StateGpu("n/gpu0", A30, "GPU-0", True, SLICES), StateGpu("n/gpu2", A30, "GPU-2", True)),
    "2026-11-27T01:00:00Z",
)


def places(state: HostState, number: int = 0) -> list[tuple[str, int]]:
    return [(item.profile, item.start) for item in state.gpus[number].instances]


def test_gpus_come_by_free_numbers_and_go():
    more = add_gpus(STATE, A30, 2, "n")
    assert [gpu.id for gpu in more.gpus] == ["n/gpu0", "n/gpu2", "n/gpu1", "n/gpu3"]
    assert more.gpus[-1] == StateGpu("n/gpu3", A30, None, True)
    assert [gpu.id for gpu in add_gpus(STATE, "L4-24GB", 1).gpus][2:] == ["gpu0"]
    assert add_gpus(STATE, "L4-24GB", 1).gpus[-1].mig_enabled is None
    assert add_gpus(STATE, "CPU-8c", 1).gpus[-1].id == "cpu0"
    assert remove_gpus(more, {"n/gpu1", "n/gpu3"}) == HostState(STATE.gpus)
    check_state(more)


def test_another_mode_empties_a_gpu_and_the_same_one_changes_nothing():
    off = set_mode(STATE, ["n/gpu0"], is_on=False)
    assert off.gpus[0] == replace(STATE.gpus[0], mig_enabled=False, instances=())
    assert set_mode(STATE, ["n/gpu0"], is_on=True).gpus == STATE.gpus
    assert not is_divided(off.gpus[0]) and is_divided(replace(off.gpus[0], mig_enabled=None))
    check_state(off)


@pytest.mark.parametrize("names", maximal_multisets(gpu_type(A30)))
def test_every_layout_is_legal_and_slices_at_their_places_stay(names):
    cut = set_layout(STATE, ["n/gpu0", "n/gpu2"], names)
    check_state(cut)
    assert sorted(profile for profile, _ in places(cut)) == sorted(names) and places(cut) == places(cut, 1)
    for item in cut.gpus[0].instances:
        assert item in SLICES or item == StateInstance(item.profile, item.start, None, ())
    assert cut.captured_at is None


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputFault, match="do not fit on one A30-24GB together"):
        set_layout(STATE, ["n/gpu0"], ["4g.24gb", "1g.6gb"])


def test_an_instance_is_replaced_removed_and_its_tenants_changed():
    other = set_instance(STATE, ["n/gpu0"], 0, ("1g.6gb", 1), None)
    assert places(other) == [("1g.6gb", 1), ("1g.6gb", 2)] and other.gpus[0].instances[0].tenants is None
    assert other.gpus[0].instances[0].uuid is None
    emptied = set_instance(STATE, ["n/gpu0"], 0, ("2g.12gb", 0), ())
    assert emptied.gpus[0].instances[0] == StateInstance("2g.12gb", 0, "MIG-1", ())
    assert places(set_instance(STATE, ["n/gpu0"], 0, None)) == [("1g.6gb", 2)]


def test_a_whole_gpu_has_an_instance_while_something_runs_there():
    off = set_mode(STATE, ["n/gpu0"], is_on=False)
    busy = set_instance(off, ["n/gpu0"], 0, (WHOLE_GPU, 0), (BERT,))
    assert busy.gpus[0].instances == (StateInstance(WHOLE_GPU, 0, None, (BERT,)),)
    check_state(busy)
    assert set_instance(busy, ["n/gpu0"], 0, (WHOLE_GPU, 0), ()).gpus == off.gpus
