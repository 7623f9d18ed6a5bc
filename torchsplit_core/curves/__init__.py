"""Batch and slice curves: predict the throughput of unmeasured rows from a model's measured rows, with 90 % intervals.

Nothing here needs torch or reads the measured library: what was learnt from it is in `prior`.
"""

from torchsplit_core.curves.advice import advice
from torchsplit_core.curves.estimate import estimate, outliers
from torchsplit_core.curves.model import Band, FitError, ModelCurves, fit_model
from torchsplit_core.curves.values import Advice, Basis, Estimate, Outlier, Query, Sample, SizeUncertainty

__all__ = [
    "Advice",
    "Band",
    "Basis",
    "Estimate",
    "FitError",
    "ModelCurves",
    "Outlier",
    "Query",
    "Sample",
    "SizeUncertainty",
    "advice",
    "estimate",
    "fit_model",
    "outliers",
]
