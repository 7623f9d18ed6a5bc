"""How to get from what runs now to a plan: what stays, and the steps that change the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torchsplit_core.values.fields import Added, FileField, Name, NonNegative, Sha256, Whole
from torchsplit_core.values.hardware import WHOLE_GPU
from torchsplit_core.values.plan.host_state import ForeignTenant
from torchsplit_core.values.plan.tenant import Tenant
from torchsplit_core.values.status import SolveStatus

StepAction = Literal["stop", "destroy", "create", "start", "enable_mig", "disable_mig"]


@dataclass(frozen=True, slots=True)
class MappedInstance:
    """A slice of the plan at its start on the host. `is_kept`: an instance of its profile stands there already."""

    profile: Annotated[Name, FileField(null=WHOLE_GPU)]
    start: Whole
    is_kept: Annotated[bool, FileField(key="kept")]
    tenants: tuple[Tenant, ...] = ()


@dataclass(frozen=True, slots=True)
class MappedGpu:
    """A GPU of the plan, and the GPU of the host that becomes it."""

    plan_gpu: Name
    host_gpu: Name
    instances: tuple[MappedInstance, ...]


@dataclass(frozen=True, slots=True)
class TransitionStep:
    """One action on one instance of a host's GPU; `start` None where it is of the whole GPU's MIG mode.

    `tenants`: those that stop or start; others of the instance run on. `seconds` are estimated.
    """

    gpu: Name
    action: StepAction
    profile: Annotated[Name, FileField(null=WHOLE_GPU)]
    start: Whole | None
    tenants: tuple[Tenant | ForeignTenant, ...] = ()
    seconds: Added[NonNegative | None] = None


@dataclass(frozen=True, slots=True)
class ModelDuring:
    """A model's throughput before, after and at its lowest, from the first step to the last.

    `demand_rps`: what is to be kept up: the request's demand where it is known, else the lesser of before and after.
    `model_seconds_below_demand`: the integral over the change of max(0, 1 − throughput / demand), estimated.
    """

    model: Name
    lowest_throughput_rps: NonNegative
    before_rps: NonNegative
    after_rps: NonNegative
    demand_rps: Added[NonNegative | None] = None
    model_seconds_below_demand: Added[NonNegative | None] = None


@dataclass(frozen=True, slots=True)
class TransitionCounts:
    """Proven limits: no transition leaves more tenants untouched; none of those keeps more instances; none of those
    touches fewer GPUs."""

    untouched_tenants: Whole
    kept_instances: Whole
    touched_gpus: Whole


@dataclass(frozen=True, slots=True)
class Transition:
    """The steps from a state to a plan, in an order in which each is legal.

    `bound` None: nothing is proven. `spare_gpu` is empty before and after and bridges meanwhile; it is not counted
    among those touched. `message` says why there is none. `exact_order`: no order of the changes, each GPU part taken
    as one, loses the worst model less. `warnings` say what was assumed.
    """

    status: SolveStatus
    untouched_tenants: Whole
    kept_instances: Whole
    touched_gpus: Whole
    bound: TransitionCounts | None
    mapping: tuple[MappedGpu, ...] = ()
    steps: tuple[TransitionStep, ...] = ()
    during: tuple[ModelDuring, ...] = ()
    spare_gpu: Name | None = None
    message: Added[str | None] = None
    warnings: Added[tuple[str, ...]] = ()
    exact_order: Added[bool] = False
    request_sha256: Added[Sha256 | None] = None
