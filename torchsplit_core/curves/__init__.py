"""Batch and slice curves: measured rows of a model in, throughput of other rows out, with 90 % intervals.

Nothing here needs torch, and nothing reads the measured library: what it taught stands in `prior`.
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
