"""What an engine runs on: a whole GPU, a MIG slice, or a group of GPUs that share every layer."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.hardware import gpu_type, peaks
from torchsplit_core.llm.constants import EngineConstants
from torchsplit_core.values import CPU, InputFault, SliceProfile, quoted, suggestion
from torchsplit_core.values.llm.decoder import DecoderSizes, WeightType


@dataclass(frozen=True, slots=True)
class EngineDevice:
    """`tensor_parallel` equal GPUs (or one slice): figures are of one of them.

    memory_gib as CUDA reports it, bandwidth in 10^9 bytes/s, `tflops` dense of 10^12 operations/s by the type of the
    weights (missing: not sourced), `link_gb_per_s` in one direction between two of the GPUs (None: one GPU, or not
    sourced), `nvlink`: whether that link is one.
    """

    gpu_type: str
    profile: str | None
    tensor_parallel: int
    memory_gib: float
    memory_gb_per_s: float
    tflops: dict[WeightType, float]
    link_gb_per_s: float | None
    nvlink: bool

    def compute(self, kind: WeightType) -> float:
        """10^12 operations/s of one GPU with such weights; those of 4 bits are spread to 16 before they are multiplied.

        Raises InputFault where it has none, naming the type."""
        figure = self.tflops.get("fp16" if kind == "int4" else kind)
        if figure is None:
            remedy = suggestion("", self.tflops, "precisions of it")
            raise InputFault("precision", f"{self.gpu_type} has no sourced peak for {kind}", remedy)
        return figure


def engine_device(
    gpu: str,
    *,
    profile: str | None = None,
    tensor_parallel: int = 1,
    constants: EngineConstants | None = None,
) -> EngineDevice:
    """A whole GPU, its MIG `profile`, or `tensor_parallel` whole GPUs of one node.

    A slice has its share of the memory slices' bandwidth and of the multiprocessors. Raises InputFault for an unknown
    type or profile, a group of slices, and where bandwidth or memory is not sourced.
    """
    known = gpu_type(gpu)
    if gpu.startswith(CPU):
        raise InputFault("gpu", f"{quoted(gpu)} is a CPU, whose engines are not reckoned", "Name a GPU type.")
    if profile is not None and tensor_parallel != 1:
        raise InputFault(
            "tp", f"{tensor_parallel} slices of {profile} share no layer: slices have no links", "Give tp 1."
        )
    try:
        part = known.whole if profile is None else known.profile(profile)
    except KeyError:
        remedy = suggestion(profile, [item.name for item in known.profiles], f"profiles of {gpu}")
        raise InputFault("profile", f"unknown profile {quoted(profile)} of {gpu}", remedy) from None
    peak = peaks(gpu) if part is not None and known.whole is not None else None
    if part is None or peak is None or part.memory_gib is None or peak.memory_gb_per_s is None:
        raise InputFault("gpu", f"memory or bandwidth of {gpu} is not sourced", "Name another GPU type.")
    compute_share, memory_share = _shares(part, known.memory_slices, peak.sm_count, whole=profile is None)
    figures: dict[WeightType, float | None] = {
        "fp32": peak.tf32_tflops or peak.fp32_tflops, "bf16": peak.bf16_tflops, "fp16": peak.fp16_tflops,
        "fp8": peak.fp8_tflops, "int8": peak.int8_tops,
    }  # fmt: skip
    link = peak.nvlink_gb_per_s or peak.pcie_gb_per_s
    constants = constants or EngineConstants()
    return EngineDevice(
        gpu_type=gpu,
        profile=profile,
        tensor_parallel=tensor_parallel,
        memory_gib=part.memory_gib * (constants.visible_memory if profile is None else 1.0),
        memory_gb_per_s=peak.memory_gb_per_s * memory_share,
        tflops={kind: figure * compute_share for kind, figure in figures.items() if figure is not None},
        link_gb_per_s=link / 2 if link and tensor_parallel > 1 else None,
        nvlink=bool(peak.nvlink_gb_per_s),
    )


def check_parallel(sizes: DecoderSizes, tensor_parallel: int) -> None:
    """Raises InputFault where the GPUs can not share the heads evenly."""
    if sizes.heads % tensor_parallel:
        divisors = [size for size in (1, 2, 4, 8, 16) if sizes.heads % size == 0]
        raise InputFault(
            "tp",
            f"{tensor_parallel} GPUs can not share {sizes.heads} heads evenly",
            f"Give one of {', '.join(map(str, divisors))}.",
        )
    if sizes.kv_heads % tensor_parallel and tensor_parallel % sizes.kv_heads:
        raise InputFault(
            "tp",
            f"{tensor_parallel} GPUs can not share {sizes.kv_heads} key-value heads evenly",
            "Give a number of GPUs that divides them or that they divide.",
        )


def _shares(profile: SliceProfile, slices: int, sms: int | None, *, whole: bool) -> tuple[float, float]:
    """Shares of multiprocessors and of memory bandwidth."""
    if whole:
        return 1.0, 1.0
    if profile.sm_count is None or sms is None:
        raise InputFault(
            "profile", f"multiprocessors of {profile.name} are not sourced", "Name another profile."
        )
    return profile.sm_count / sms, profile.memory_slices / slices
