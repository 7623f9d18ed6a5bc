"""Fit the constants of the roofline estimator to the measured A100 library and print their errors.

    python -m benchmarks.roofline_calibration

Fits efficiencies and overheads on nine convolutional networks and the efficiency of FP32 products on BERT, and prints
measured / predicted throughput for each network when it is left out of the fit. The shipped constants are in
torchsplit_core/profiling/roofline.py; this script does not change them. Takes about two minutes on two cores.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import least_squares

from benchmarks.reference_networks import NETWORKS, example
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.hardware import gpu_type, peaks
from torchsplit_core.profiling.flops import NodeCost, node_costs
from torchsplit_core.profiling.library import (
    LIBRARY_GPU,
    PROFILE_OF_COMPUTE_SLICES,
    MeasuredRow,
    measured_library,
)
from torchsplit_core.profiling.roofline import FITTED_CONSTANTS, RooflineConstants, batch_time_s, slice_rates

NAMES = ("convolution", "memory", "host_s", "device_s")
LEAST = np.log([0.05, 0.1, 1e-6, 1e-7])
MOST = np.log([1.0, 1.0, 1e-4, 2e-5])


class Calibration:
    """The library's single-process rows of networks with a known graph, and their costs."""

    def __init__(self, graphs: dict[str, TorchGraph]) -> None:
        gpu = gpu_type(LIBRARY_GPU)
        peak = peaks(LIBRARY_GPU)
        self.rows = [row for row in measured_library() if row.processes == 1 and row.model in graphs]
        self.rates = {
            count: slice_rates(peak, gpu, gpu.profile(name))
            for count, name in PROFILE_OF_COMPUTE_SLICES.items()
        }
        keys = {(row.model, row.batch_size) for row in self.rows}
        self.costs: dict[tuple[str, int], tuple[NodeCost, ...]] = {
            (model, batch): node_costs(graphs[model], batch) for model, batch in sorted(keys)
        }

    def ratios(self, rows: Sequence[MeasuredRow], constants: RooflineConstants) -> np.ndarray:
        """ln(measured / predicted) of the throughput."""
        found = []
        for row in rows:
            costs = self.costs[row.model, row.batch_size]
            seconds = batch_time_s(costs, self.rates[row.compute_slices], constants)
            assert seconds is not None
            found.append(np.log(row.throughput_rps * seconds / row.batch_size))
        return np.array(found)

    def fit(self, rows: Sequence[MeasuredRow]) -> RooflineConstants:
        """Fit with a soft-L1 loss on the logarithms, since some rows of the library are far off."""

        def residuals(logs: np.ndarray) -> np.ndarray:
            return self.ratios(rows, replace(FITTED_CONSTANTS, **dict(zip(NAMES, np.exp(logs), strict=True))))

        start = np.log([getattr(FITTED_CONSTANTS, name) for name in NAMES])
        solution = least_squares(
            residuals, start, bounds=(LEAST, MOST), loss="soft_l1", f_scale=0.1, diff_step=1e-3, max_nfev=15
        )
        return replace(
            FITTED_CONSTANTS,
            **{name: float(np.exp(value)) for name, value in zip(NAMES, solution.x, strict=True)},
        )

    def fit_matmul(self, rows: Sequence[MeasuredRow], constants: RooflineConstants) -> RooflineConstants:
        """Fit the one efficiency that BERT determines; all others stay."""
        choices = [replace(constants, matmul=float(value)) for value in np.linspace(0.2, 1.0, 81)]
        return min(choices, key=lambda choice: float(np.abs(self.ratios(rows, choice)).mean()))


def said(ratios: np.ndarray) -> str:
    """Median error and the 5 %, 50 % and 95 % quantiles of measured / predicted."""
    low, middle, high = np.exp(np.quantile(ratios, [0.05, 0.5, 0.95]))
    error = float(np.median(np.abs(np.expm1(ratios))))
    return f"{len(ratios):4d} rows  median error {error:6.1%}  quantiles {low:.2f} {middle:.2f} {high:.2f}"


def graph_of(name: str) -> TorchGraph:
    """The network's graph with a free batch."""
    from torchsplit_core.tracing.export import export_program
    from torchsplit_core.tracing.program_graph import convert_program

    with torch.device("meta"):
        model = NETWORKS[name]().eval()
    return convert_program(export_program(model, example(name), {}), 2)


def main() -> None:
    """Fit, leave out one network at a time, and print."""
    graphs = {}
    for name in NETWORKS:
        print(f"exporting {name}", file=sys.stderr)
        graphs[name] = graph_of(name)
    calibration = Calibration(graphs)
    convolutional = [row for row in calibration.rows if row.model != "bert"]
    bert = [row for row in calibration.rows if row.model == "bert"]
    constants = calibration.fit_matmul(bert, calibration.fit(convolutional))
    print("fitted on all    ", constants)
    print("in the estimator ", FITTED_CONSTANTS)
    print("\nmeasured / predicted throughput, each network left out of its fit")
    left_out = []
    for name in sorted({row.model for row in convolutional}):
        others = [row for row in convolutional if row.model != name]
        found = calibration.ratios(
            [row for row in convolutional if row.model == name], calibration.fit(others)
        )
        left_out.append(found)
        print(f"{name:12} {said(found)}")
    print(f"{'together':12} {said(np.concatenate(left_out))}")
    print(f"{'bert':12} {said(calibration.ratios(bert, constants))}  (its own fit of one constant)")


if __name__ == "__main__":
    main()
